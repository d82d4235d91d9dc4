/* A part of a JPEG, resized, mirrored and written into the batch, in one pass over its rows.
 *
 * The caller has read the header and made a plan (see plan.py): the box (top, left, height, width)
 * becomes (out_height, out_width), of which a window is kept. Of the JPEG only the columns and
 * rows that the window needs are decoded, at 1/1, 1/2, 1/4 or 1/8; rows go through a ring just
 * large enough for the filter. The filters are Pillow's, in floats, rounded once and not twice.
 * The pixels are libjpeg's own; only the Huffman codes are read here (huffman.h).
 *
 * The result is the same on every processor and from every compiler: it is compiled with
 * -ffp-contract=off, so that no multiplication and addition are fused, and sums have a fixed order.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>
#include <jerror.h>

/* 16 differs for _Float16 only. */
#if defined(__FAST_MATH__) || (FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16)
#error "floats must be computed as IEEE 754 defines, or pixels would depend on the compiler"
#endif

#define EXPORT __attribute__((visibility("default")))
/* Made for newer processors too; the loader takes the best one. (By names of processors, such as
 * haswell, it would take them on Intel's only.) */
#if !defined(__x86_64__) || !defined(__GLIBC__) || defined(ONE_PROCESSOR)
#define FOR_EACH_PROCESSOR
#elif defined(__clang__) || __GNUC__ < 12
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

enum { DONE = 0, FAILED = 1 };
enum { MARGIN = 2, SPARE = 4 };  /* pixels around the part; floats behind a row, of no account */
enum { ALIGNED = 64 };           /* bytes */
enum { MAX_SCANS = 100 };        /* as images.py has it */

typedef float four __attribute__((vector_size(16)));

/* The layout of what Python packs: "17i6f". */
typedef struct {
    int32_t height, width;                        /* of the picture */
    int32_t top, left, box_height, box_width;
    int32_t out_height, out_width;
    int32_t row, column, rows, columns;
    int32_t flip, reduction, bicubic, planes, floats;
    float factor[3], offset[3];
} order;

/* For each place of the output: where its pixels begin, how many, and their weights. */
typedef struct {
    int32_t *first, *count;
    float *weights;
    int32_t most, used;                           /* room for so many each; most that are needed */
    int32_t low, high;                            /* the pixels that any place needs */
} taps;

typedef struct {
    struct jpeg_error_mgr manager;
    jmp_buf back;
    char *message;
    size_t room;
} trouble;

enum { BY_ERROR = 1, BY_LIBJPEG = 2 };            /* how one comes back */

static void trouble_in(j_decompress_ptr jpeg)
{
    longjmp(((trouble *)jpeg->err)->back, BY_LIBJPEG);
}

enum { TRAILER = 64 };

/* Whether the end mark is there. */
static int has_end(const uint8_t *data, size_t size)
{
    for (size_t x = size > TRAILER ? size - TRAILER : 0; x + 1 < size; x++)
        if (data[x] == 0xFF && data[x + 1] == 0xD9)
            return 1;
    return 0;
}

#include "huffman.h"

typedef struct {
    struct jpeg_decompress_struct jpeg;
    trouble trouble;
    taps across, down;
    uint8_t *ring;
    float *sums, *line;                           /* line: three colours, then room for one */
    struct jpeg_progress_mgr progress;
    scan *scan;                                   /* NULL: libjpeg reads all by itself */
} work;

static void give_up(j_common_ptr jpeg)
{
    trouble *trouble_ = (trouble *)jpeg->err;
    char text[JMSG_LENGTH_MAX];
    (*jpeg->err->format_message)(jpeg, text);
    snprintf(trouble_->message, trouble_->room, "%s", text);
    longjmp(trouble_->back, BY_ERROR);
}

/* Damage that a decoder can pass over is passed over, as Pillow does; data that ends is not. */
static void hear(j_common_ptr jpeg, int level)
{
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF)
        give_up(jpeg);
}

static void hush(j_common_ptr jpeg) { (void)jpeg; }

/* Every scan of a picture takes a pass over all of its blocks, however few bytes it has. */
static void limit_scans(j_common_ptr jpeg)
{
    trouble *trouble_ = (trouble *)jpeg->err;
    if (((j_decompress_ptr)jpeg)->input_scan_number <= MAX_SCANS)
        return;
    snprintf(trouble_->message, trouble_->room, "more than %d scans", MAX_SCANS);
    longjmp(trouble_->back, BY_ERROR);
}

static double weight(double x, int bicubic)
{
    x = fabs(x);
    if (!bicubic)
        return x < 1 ? 1 - x : 0;
    const double a = -0.5;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* The weights for places [start, start + n) of `out` that [from, from + length) becomes; places
 * outside of out have none. Pixels below floor(from) or beyond `end` have no part. 0: no memory. */
static int make_taps(taps *t, double from, double length, int end, int out, int start, int n,
                     int mirrored, int bicubic)
{
    double scale = length / out, wide = scale < 1 ? 1 : scale;
    double support = (bicubic ? 2 : 1) * wide;
    int lowest = (int)floor(from), highest = (int)ceil(from + length);
    if (highest > end)
        highest = end;
    t->most = (int)ceil(support) * 2 + 2;
    t->low = highest;
    t->high = lowest;
    t->first = calloc((size_t)n * 2, sizeof(int32_t));
    t->weights = calloc((size_t)n * t->most, sizeof(float));
    if (t->first == NULL || t->weights == NULL)
        return 0;
    t->count = t->first + n;
    for (int i = 0; i < n; i++) {
        int place = start + i, slot = mirrored ? n - 1 - i : i;
        if (place < 0 || place >= out)
            continue;
        double centre = from + (place + 0.5) * scale, sum = 0;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        low = low < lowest ? lowest : low;
        high = high > highest ? highest : high;
        if (high <= low)  /* a sliver at the very end */
            low = low >= highest ? highest - 1 : low, high = low + 1;
        if (high - low > t->most)
            high = low + t->most;
        float *weights = t->weights + (size_t)slot * t->most;
        for (int x = low; x < high; x++)
            sum += weight((x + 0.5 - centre) / wide, bicubic);
        for (int x = low; x < high; x++)
            weights[x - low] = sum != 0 ? weight((x + 0.5 - centre) / wide, bicubic) / sum
                                        : 1.0 / (high - low);
        t->first[slot] = low;
        t->count[slot] = high - low;
        t->used = high - low > t->used ? high - low : t->used;
        t->low = low < t->low ? low : t->low;
        t->high = high > t->high ? high : t->high;
    }
    return 1;
}

/* Give every place `used` weights, the new ones 0, all of them for pixels from low to high. */
static void fill_up(taps *t, int n)
{
    for (int i = 0; i < n; i++) {
        float *weights = t->weights + (size_t)i * t->most;
        if (t->count[i] == 0)
            t->first[i] = t->low;
        int beyond = t->first[i] + t->used - t->high;
        if (beyond > 0) {
            memmove(weights + beyond, weights, (size_t)(t->used - beyond) * sizeof *weights);
            memset(weights, 0, (size_t)beyond * sizeof *weights);
            t->first[i] -= beyond;
        }
        t->count[i] = t->used;
    }
}

/* sums = the weighted rows; up to four rows in one go. */
FOR_EACH_PROCESSOR
static void sum_rows(float *restrict sums, const uint8_t *ring, int stride, int length, int first,
                     int count, const float *weights, int n)
{
    for (int done = 0; done < count; done += 4) {
        const uint8_t *restrict a = ring + (size_t)((first + done) % length) * stride;
        const uint8_t *restrict b = ring + (size_t)((first + done + 1) % length) * stride;
        const uint8_t *restrict c = ring + (size_t)((first + done + 2) % length) * stride;
        const uint8_t *restrict d = ring + (size_t)((first + done + 3) % length) * stride;
        float u = weights[done], v = done + 1 < count ? weights[done + 1] : 0;
        float w = done + 2 < count ? weights[done + 2] : 0;
        float z = done + 3 < count ? weights[done + 3] : 0;
        if (done)
            for (int x = 0; x < n; x++)
                sums[x] += u * a[x] + v * b[x] + w * c[x] + z * d[x];
        else if (count == 1)
            for (int x = 0; x < n; x++)
                sums[x] = u * a[x];
        else if (count == 2)
            for (int x = 0; x < n; x++)
                sums[x] = u * a[x] + v * b[x];
        else if (count == 3)
            for (int x = 0; x < n; x++)
                sums[x] = u * a[x] + v * b[x] + w * c[x];
        else
            for (int x = 0; x < n; x++)
                sums[x] = u * a[x] + v * b[x] + w * c[x] + z * d[x];
    }
}

/* line = for each place the weighted pixels of sums, colours apart. As many for each place, see
 * fill_up: a count that changes from place to place would cost more in wrong guesses of the
 * processor than all the sums. */
static inline __attribute__((always_inline)) void sum_places(
    float *restrict line, const float *restrict sums, const taps *t, int from, int n, int used)
{
    for (int i = 0; i < n; i++) {
        const float *pixel = sums + (ptrdiff_t)3 * (t->first[i] - from);
        const float *weights = t->weights + (size_t)i * t->most;
        four sum = {0, 0, 0, 0}, value;
        for (int x = 0; x < used; x++) {
            memcpy(&value, pixel + 3 * x, sizeof value);  /* its fourth is the next pixel's first */
            sum += value * weights[x];
        }
        line[i] = sum[0];
        line[n + i] = sum[1];
        line[2 * n + i] = sum[2];
    }
}

FOR_EACH_PROCESSOR
static void sum_pixels(float *restrict line, const float *restrict sums, const taps *t, int from,
                       int n)
{
    switch (t->used) {
    case 1: sum_places(line, sums, t, from, n, 1); break;
    case 2: sum_places(line, sums, t, from, n, 2); break;
    case 3: sum_places(line, sums, t, from, n, 3); break;
    case 4: sum_places(line, sums, t, from, n, 4); break;
    case 5: sum_places(line, sums, t, from, n, 5); break;
    case 6: sum_places(line, sums, t, from, n, 6); break;
    default: sum_places(line, sums, t, from, n, t->used);
    }
}

/* Levels rounded and kept from 0 to 255: as bytes, or as normalised floats. */
FOR_EACH_PROCESSOR
static void put_bytes(uint8_t *restrict to, const float *restrict line, int n)
{
    for (int i = 0; i < n; i++) {
        int32_t level = (int32_t)(line[i] + 256.5f) - 256;  /* rounds those below 0 alike */
        level = level < 0 ? 0 : level;
        to[i] = (uint8_t)(level > 255 ? 255 : level);
    }
}

FOR_EACH_PROCESSOR
static void put_floats(float *restrict to, const float *restrict line, int n, float factor,
                       float offset)
{
    for (int i = 0; i < n; i++) {
        int32_t level = (int32_t)(line[i] + 256.5f) - 256;
        level = level < 0 ? 0 : level;
        level = level > 255 ? 255 : level;
        to[i] = (float)level * factor + offset;
    }
}

static void put_line(const order *o, float *line, int y, void *out)
{
    int n = o->columns, wide = o->floats ? 4 : 1;
    for (int c = 0; c < 3; c++) {
        size_t begin = o->planes ? ((size_t)c * o->rows + y) * n : 0;
        uint8_t *to = o->planes ? (uint8_t *)out + begin * wide : (uint8_t *)(line + 3 * n);
        if (o->floats)
            put_floats((float *)to, line + (size_t)c * n, n, o->factor[c], o->offset[c]);
        else
            put_bytes(to, line + (size_t)c * n, n);
        if (o->planes)
            continue;
        begin = (size_t)y * n * 3 + c;
        for (int i = 0; i < n; i++)
            if (o->floats)
                ((float *)out)[begin + (size_t)3 * i] = ((float *)to)[i];
            else
                ((uint8_t *)out)[begin + (size_t)3 * i] = to[i];
    }
}

static void clean_up(work *w)
{
    jpeg_destroy_decompress(&w->jpeg);
    free(w->across.first);
    free(w->across.weights);
    free(w->down.first);
    free(w->down.weights);
    free(w->ring);
    free(w->sums);
    free(w);
}

static int fail(work *w, const char *message)
{
    snprintf(w->trouble.message, w->trouble.room, "%s", message);
    return FAILED;
}

static int decode(work *w, const order *o, void *out)
{
    struct jpeg_decompress_struct *jpeg = &w->jpeg;
    taps *across = &w->across, *down = &w->down;
    jpeg_read_header(jpeg, TRUE);
    if ((jpeg->num_components != 1 && jpeg->num_components != 3) || jpeg->data_precision != 8
        || (int)jpeg->image_height != o->height || (int)jpeg->image_width != o->width)
        return fail(w, "not the picture that the plan is for");
    jpeg->out_color_space = JCS_RGB;
    jpeg->scale_num = 1;
    jpeg->scale_denom = o->reduction;
    if (jpeg_has_multiple_scans(jpeg)) {
        w->progress.progress_monitor = limit_scans;
        jpeg->progress = &w->progress;
    }
    jpeg_start_decompress(jpeg);
    int height = jpeg->output_height, width = jpeg->output_width;
    double by = o->reduction;
    if (!make_taps(across, o->left / by, o->box_width / by, width, o->out_width, o->column,
                   o->columns, o->flip, o->bicubic)
        || !make_taps(down, o->top / by, o->box_height / by, height, o->out_height, o->row,
                      o->rows, 0, o->bicubic))
        return fail(w, "no memory for the filter");
    if (across->low >= across->high || down->low >= down->high)
        return fail(w, "the window lies outside of the picture");
    fill_up(across, o->columns);

    /* Colours are smoothed over block edges: with a margin the part is what the whole would be. */
    JDIMENSION x = across->low > MARGIN ? across->low - MARGIN : 0;
    JDIMENSION columns = across->high + MARGIN < width ? across->high + MARGIN - x : width - x;
    /* libjpeg-turbo leaves the last columns of such crops unset, version 2 of the second kind too. */
    int blocks = jpeg->max_h_samp_factor * jpeg->max_v_samp_factor;
    if (o->reduction == 8 || (o->reduction > 1 && blocks > 4))
        x = 0, columns = width;
    else if (x > 0 || (int)columns < width)
        jpeg_crop_scanline(jpeg, &x, &columns);
    if (w->scan != NULL)
        take_over(jpeg, w->scan, (int)x, (int)columns, DCTSIZE / o->reduction);
    int from = (int)x, n = (int)columns * 3, length = down->most + 3;
    int stride = (n + ALIGNED - 1) / ALIGNED * ALIGNED;
    w->ring = calloc((size_t)length * stride + 2 * ALIGNED, 1);
    w->sums = calloc(n + SPARE + 4 * (size_t)o->columns, sizeof(float));
    if (w->ring == NULL || w->sums == NULL)
        return fail(w, "no memory for the rows");
    w->line = w->sums + n + SPARE;
    /* No row is aligned: libjpeg-turbo would write it past the caches, and we read it at once. */
    uint8_t *ring = w->ring + ALIGNED + ALIGNED / 4 - (uintptr_t)w->ring % ALIGNED;

    int next = down->low > MARGIN ? down->low - MARGIN : 0;
    if (next > 0)
        next = (int)jpeg_skip_scanlines(jpeg, next);
    for (int y = 0; y < o->rows; y++) {
        for (int end = down->first[y] + down->count[y]; next < end; next++) {
            JSAMPROW row = ring + (size_t)(next % length) * stride;
            if (jpeg_read_scanlines(jpeg, &row, 1) != 1)
                return fail(w, "rows are missing");
        }
        if (down->count[y] == 0) {
            memset(w->line, 0, 3 * sizeof(float) * o->columns);
        } else {
            sum_rows(w->sums, ring, stride, length, down->first[y], down->count[y],
                     down->weights + (size_t)y * down->most, n);
            sum_pixels(w->line, w->sums, across, from, o->columns);
        }
        put_line(o, w->line, y, out);
    }
    jpeg_abort_decompress(jpeg);
    return DONE;
}

static _Atomic int64_t begun_again;

static int make(const uint8_t *data, size_t size, const order *o, void *out, char *message,
                size_t room, scan *scan)
{
    work *w = calloc(1, sizeof *w);
    if (w == NULL) {
        snprintf(message, room, "no memory");
        return FAILED;
    }
    w->trouble.message = message;
    w->trouble.room = room;
    w->scan = scan;
    w->jpeg.err = jpeg_std_error(&w->trouble.manager);
    w->trouble.manager.error_exit = give_up;
    w->trouble.manager.emit_message = hear;
    w->trouble.manager.output_message = hush;
    int result = FAILED, why = setjmp(w->trouble.back);
    if (why == 0) {
        jpeg_create_decompress(&w->jpeg);
        jpeg_mem_src(&w->jpeg, data, size);
        result = decode(w, o, out);
    }
    clean_up(w);
    if (why != BY_LIBJPEG)
        return result;
    begun_again++;
    return make(data, size, o, out, message, room, NULL);
}

/* How many pictures had to be begun again, since their codes were not sound. */
EXPORT int64_t penstock_begun_again(void) { return begun_again; }

/* Fill `out` as ordered. FAILED: the message says why; out may be half filled. The scan is zeros, or
 * from the picture before; without one it is slower. */
static int jpeg(const uint8_t *data, size_t size, const order *o, void *out, char *message,
                size_t room, scan *scan)
{
    if (o->top < 0 || o->left < 0 || o->box_height < 1 || o->box_width < 1
        || o->top > o->height - o->box_height || o->left > o->width - o->box_width
        || o->out_height < 1 || o->out_width < 1 || o->rows < 1 || o->columns < 1
        || o->out_height > 65535 || o->out_width > 65535 || o->rows > 65535
        || o->columns > 65535
        || (o->reduction != 1 && o->reduction != 2 && o->reduction != 4 && o->reduction != 8)) {
        snprintf(message, room, "the plan does not fit the picture");
        return FAILED;
    }
    return make(data, size, o, out, message, room, scan);
}

EXPORT int penstock_jpeg(const uint8_t *data, size_t size, const order *given, void *out,
                         char *message, size_t room)
{
    order o = *given;
    scan *scan = calloc(1, sizeof *scan);
    int result = jpeg(data, size, &o, out, message, room, scan);
    free(scan);
    return result;
}

/* ── many pictures in one call: the interpreter is asked for its lock once, not once each ────── */

enum { KNOWN = 1, COMPLETE = 2, MADE = 4, REFUSED = 8 };

/* One of many pictures, as Python packs it: "6qQq3i" and then the order. */
typedef struct {
    int64_t data, size;                           /* an address; where file >= 0, to be filled */
    int64_t file, offset;                         /* where to read it, or -1 */
    int64_t written;                              /* when the file was, in nanoseconds */
    int64_t out;                                  /* an address */
    uint64_t key;                                 /* of its random numbers, */
    int64_t drawn;                                /* and how many were drawn */
    int32_t state, most, colours;                 /* see below; most: pixels that are believed */
    order order;                                  /* its height and width are found by look */
} job;

/* The header, as jpegs.read_frame reads it: 0 where another decoder had better look. */
static int read_frame(job *j)
{
    const uint8_t *data = (const uint8_t *)(intptr_t)j->data;
    int64_t size = j->size, place = 2;
    int32_t height = 0, width = 0, colours = 0, sequential = 0;
    if (size < 2 || data[0] != 0xFF || data[1] != 0xD8)
        return 0;
    while (place < size && data[place] == 0xFF) {
        if (place + 1 >= size)
            return 0;
        int mark = data[place + 1];
        if (mark == 0xFF) {  /* any number of these may stand before a mark */
            place++;
            continue;
        }
        int frame = mark >= 0xC0 && mark <= 0xC2;
        if (frame && place + 4 >= size)
            return 0;
        if (frame && data[place + 4] == 8) {
            if (place + 9 >= size)
                return 0;
            height = data[place + 5] << 8 | data[place + 6];
            width = data[place + 7] << 8 | data[place + 8];
            colours = data[place + 9];
            sequential = mark != 0xC2;
        } else if (mark == 0xDA) {
            int64_t pixels = (int64_t)height * width;
            if ((colours != 1 && colours != 3) || pixels < 1 || pixels > j->most
                || (sequential && place + 4 >= size))
                return 0;
            j->state = has_end(data, (size_t)size) ? KNOWN | COMPLETE : KNOWN;
            j->order.height = height;
            j->order.width = width;
            j->colours = colours;
            return 1;
        } else if (mark <= 0x01 || (mark >= 0xD0 && mark <= 0xD9)
                   || (mark >= 0xC0 && mark <= 0xCF && mark != 0xC4 && mark != 0xCC)) {
            return 0;
        }
        if (place + 3 >= size)
            return 0;
        place += 2 + (data[place + 2] << 8 | data[place + 3]);
    }
    return 0;
}

/* Whether a file was written to since: what its headers told may no longer be so. */
static int changed(const job *j)
{
    struct stat status;
    if (fstat((int)j->file, &status) != 0)
        return 1;
#ifdef __APPLE__
    struct timespec written = status.st_mtimespec;
#else
    struct timespec written = status.st_mtim;
#endif
    return (int64_t)written.tv_sec * 1000000000 + written.tv_nsec != j->written;
}

/* Read what stands in files, and the headers. State: -1 where the file is too short, fails or was
 * changed, 0 where the header is not understood, else KNOWN, and COMPLETE where the end mark is there; then
 * MADE, or REFUSED, where it was to be made. */
EXPORT void penstock_look(job *jobs, int32_t count)
{
    for (job *j = jobs; j < jobs + count; j++) {
        int64_t got = 0, more = 1;
        j->state = 0;
        while (j->file >= 0 && got < j->size && more > 0) {
            more = pread((int)j->file, (char *)(intptr_t)j->data + got, (size_t)(j->size - got),
                         (off_t)(j->offset + got));
            got += more > 0 ? more : 0;
        }
        if (j->file >= 0 && (got < j->size || changed(j)))
            j->state = -1;
        else
            read_frame(j);
    }
}

/* Fill each picture's `out` as ordered; jobs without one are passed over. */
static void fill_out(job *j, scan *scan)
{
    char message[JMSG_LENGTH_MAX];  /* for debuggers: another decoder has its own */
    if (j->out != 0)
        j->state |= jpeg((const uint8_t *)(intptr_t)j->data, (size_t)j->size, &j->order,
                         (void *)(intptr_t)j->out, message, sizeof message, scan) == DONE
                        ? MADE : REFUSED;
}

EXPORT void penstock_jpegs(job *jobs, int32_t count)
{
    scan *scan = calloc(1, sizeof *scan);
    for (job *j = jobs; j < jobs + count; j++)
        fill_out(j, scan);
    free(scan);
}

/* A crop at random, as Python packs it: "7d2i". */
typedef struct {
    double scale[2], low, high, ratio[2], flip;   /* low and high: the logarithms of ratio */
    int32_t height, width;
} crop;

/* The next of a picture's random numbers, as context.Draws gives it. */
static double draw(job *j)
{
    uint64_t z = j->key + (uint64_t)++j->drawn * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* The box that plan.random_box draws, to the bit. */
static void draw_crop(job *j, const crop *c)
{
    order *o = &j->order;
    int32_t height = o->height, width = o->width, h = 0, w = 0, tries = 0;
    double area = (double)((int64_t)height * width);
    for (; tries < 10; tries++) {
        double target = area * (c->scale[0] + (c->scale[1] - c->scale[0]) * draw(j));
        double shape = exp(c->low + (c->high - c->low) * draw(j));
        double wide = nearbyint(sqrt(target * shape)), high = nearbyint(sqrt(target / shape));
        if (wide > 0 && wide <= width && high > 0 && high <= height) {
            h = (int32_t)high, w = (int32_t)wide;
            o->top = (int32_t)(draw(j) * (height - h + 1));
            o->left = (int32_t)(draw(j) * (width - w + 1));
            break;
        }
    }
    if (tries == 10) {  /* the middle, as near to the ratios as the picture allows */
        double is = (double)width / height;
        h = height, w = width;
        if (is < c->ratio[0]) {
            double best = nearbyint(width / c->ratio[0]);
            h = best < 1 ? 1 : best > height ? height : (int32_t)best;
        } else if (is > c->ratio[1]) {
            double best = nearbyint(height * c->ratio[1]);
            w = best < 1 ? 1 : best > width ? width : (int32_t)best;
        }
        o->top = (height - h) / 2;
        o->left = (width - w) / 2;
    }
    o->box_height = h, o->box_width = w;
    o->out_height = o->rows = c->height;
    o->out_width = o->columns = c->width;
    o->row = o->column = 0;
    o->flip = c->flip > 0 && draw(j) < c->flip;
    double down = (double)h / c->height, across = (double)w / c->width;
    double shrinks = down < across ? down : across;
    o->reduction = shrinks >= 16 ? 8 : shrinks >= 8 ? 4 : shrinks >= 4 ? 2 : 1;
}

/* All of it: read, look, draw, and fill where there is an `out`. The rest of the order (filter and
 * form) is there already. Damaged pictures with an `out` are left alone, and nothing is drawn. */
EXPORT void penstock_crops(job *jobs, int32_t count, const crop *c)
{
    scan *scan = calloc(1, sizeof *scan);
    for (job *j = jobs; j < jobs + count; j++) {
        penstock_look(j, 1);
        if (j->state < KNOWN || (j->out != 0 && !(j->state & COMPLETE)))
            continue;
        draw_crop(j, c);
        fill_out(j, scan);
    }
    free(scan);
}

/* ── a batch between two ends: an engine takes from the front, threads make from the end ─────── */

typedef struct {
    job *jobs;
    _Atomic uint64_t ends;                        /* the first that is left; above, behind the last */
    int32_t threads;
    pthread_t thread[];
} batch;

static uint32_t first_of(uint64_t ends) { return (uint32_t)ends; }
static uint32_t behind_of(uint64_t ends) { return (uint32_t)(ends >> 32); }

/* Makes what is left, the last one first. */
static void *make_rest(void *given)
{
    batch *b = given;
    scan *scan = calloc(1, sizeof *scan);
    uint64_t ends = atomic_load(&b->ends);
    while (first_of(ends) < behind_of(ends)) {
        if (!atomic_compare_exchange_weak(&b->ends, &ends, ends - ((uint64_t)1 << 32)))
            continue;
        job *j = b->jobs + behind_of(ends) - 1;
        penstock_look(j, 1);
        if (j->state > 0 && j->state & COMPLETE)
            fill_out(j, scan);
        ends = atomic_load(&b->ends);
    }
    free(scan);
    return NULL;
}

/* Threads begin to make the jobs. NULL where there is no memory. */
EXPORT batch *penstock_begin(job *jobs, int32_t count, int32_t threads)
{
    sigset_t all, before;
    batch *b = calloc(1, sizeof *b + (size_t)threads * sizeof *b->thread);
    if (b == NULL)
        return NULL;
    b->jobs = jobs;
    atomic_init(&b->ends, (uint64_t)count << 32);
    sigfillset(&all);  /* signals are for the interpreter's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (b->threads < threads
           && pthread_create(b->thread + b->threads, NULL, make_rest, b) == 0)
        b->threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b;
}

/* Behind the last one that is left. */
EXPORT int32_t penstock_behind(batch *b) { return (int32_t)behind_of(atomic_load(&b->ends)); }

/* Take jobs from the front; how many there were, at most `count`. */
EXPORT int32_t penstock_take(batch *b, int32_t count)
{
    uint64_t ends = atomic_load(&b->ends);
    uint32_t taken;
    do {
        uint32_t left = behind_of(ends) - first_of(ends);
        taken = (uint32_t)count < left ? (uint32_t)count : left;
    } while (!atomic_compare_exchange_weak(&b->ends, &ends, ends + taken));
    return (int32_t)taken;
}

/* Wait for the threads, and help them, or let them stop; the first job that they took. */
EXPORT int32_t penstock_end(batch *b, int32_t help)
{
    if (help)
        make_rest(b);
    else
        penstock_take(b, INT32_MAX);
    for (int32_t n = 0; n < b->threads; n++)
        pthread_join(b->thread[n], NULL);
    int32_t behind = penstock_behind(b);
    free(b);
    return behind;
}
