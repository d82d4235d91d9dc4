/* The codes of a sequential JPEG, read about twice as fast as libjpeg reads them.
 *
 * Most of the time of a JPEG goes into its Huffman codes, one after another, none of which can be
 * left out. Here one look into a table gives up to two whole coefficients: codes, the zeros before
 * each, and values. Blocks that nobody will see are only stepped over, several codes at a time.
 *
 * libjpeg does all the rest. It calls a function for each unit of blocks, and take_over puts ours
 * in that place. Anything but sound data ends in trouble_in, which does not return: the caller begins
 * again with libjpeg's own function, so that damage is treated as libjpeg treats it.
 */
enum {
    PEEK = 10,                                    /* bits of a look */
    PLACES = 64,                                  /* of a block */
    END = 64, UNKNOWN = 127,                      /* steps: the block is done; the look won't do */
    MOST_BLOCKS = 10,                             /* in a unit */
    LARGEST = 11,                                 /* bits of a value */
};

/* libjpeg's own structure begins so, in all its versions. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

/* A look, a byte each from the right: bits taken; places gone on with the first code, and with both;
 * bits before the first value, and 63 less its own; the same of the second value. Where there is no
 * second code, it goes on by 0 and its value is 0. A stride: bits taken, and places gone on. */
typedef struct {
    uint64_t looks[1 << PEEK];
    uint32_t strides[1 << PEEK];                  /* of as many codes as can be told */
    int32_t limit[17], shift[17];                 /* for codes by their length; 16 bits are read */
    JHUFF_TBL made_from;
    int made;
} codes;

typedef struct {
    const uint8_t *next;
    uint64_t bits;                                /* those before it, at the left */
    int left;                                     /* how many */
} reader;

typedef struct {
    reader reader;
    const uint8_t *end, *safe;                    /* of the data; up to where 8 bytes stand there */
    int made_up;                                  /* bits that the reader has, but not the data */
    codes *dc[MOST_BLOCKS], *ac[MOST_BLOCKS];     /* of each block of a unit */
    int component[MOST_BLOCKS];
    uint32_t values[4];                           /* the last DC of each component */
    int column, first, last;                      /* of units; those in between are wanted */
    int before_restart, restarts;
    codes dc_codes[NUM_HUFF_TBLS], ac_codes[NUM_HUFF_TBLS];
} scan;

static const uint8_t PLACE[PLACES] = {            /* of the first, second, ... in a block */
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

#define INLINE static inline __attribute__((always_inline))

/* ── the tables ──────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    uint8_t length, size, steps;                  /* of the code, of its value, see above */
} entry;

/* How far a symbol goes; UNKNOWN where sound data has no such symbol. */
INLINE int steps_of(int symbol, int is_dc)
{
    if (is_dc)
        return 1;
    if (symbol == 0)
        return END;
    return (symbol & 15) == 0 && symbol != 0xF0 ? UNKNOWN : (symbol >> 4) + 1;
}

/* The code that each PEEK bits begin with. */
static void list_codes(codes *c, entry *entries, int is_dc)
{
    const JHUFF_TBL *from = &c->made_from;
    int code = 0, number = 0;
    memset(entries, 0, sizeof(entry) << PEEK);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        c->shift[length] = number - code;
        for (int i = 0; i < from->bits[length] && number < 256; i++, code++, number++) {
            int symbol = from->huffval[number], steps = steps_of(symbol, is_dc);
            entry one = {(uint8_t)length, symbol & 15, (uint8_t)steps};
            if (length <= PEEK && steps != UNKNOWN && one.size <= LARGEST && code < 1 << length)
                for (int p = code << (PEEK - length); p < (code + 1) << (PEEK - length); p++)
                    entries[p] = one;
        }
        c->limit[length] = code << (16 - length);
    }
}

static void make_looks(codes *c, const entry *entries, int is_dc)
{
    for (int p = 0; p < 1 << PEEK; p++) {
        entry one = entries[p], next = {0, 0, 0};
        int before = one.length + one.size;
        if (!is_dc && one.steps != END && before < PEEK)
            next = entries[p << before & ((1 << PEEK) - 1)];
        if (before + next.length > PEEK)
            next = (entry){0, 0, 0};
        before += next.length;
        int steps = one.length > 0 ? one.steps : UNKNOWN;
        c->looks[p] = (uint64_t)(before + next.size) | (uint64_t)steps << 8
                      | (uint64_t)(steps + next.steps) << 16 | (uint64_t)one.length << 24
                      | (uint64_t)(63 - one.size) << 32 | (uint64_t)before << 40
                      | (uint64_t)(63 - next.size) << 48;
    }
}

static void make_strides(codes *c, const entry *entries)
{
    for (int p = 0; p < 1 << PEEK; p++) {
        int bits = 0, steps = 0;
        while (bits < PEEK && steps < END) {
            entry next = entries[p << bits & ((1 << PEEK) - 1)];
            if (next.length == 0 || bits + next.length > PEEK
                || (next.steps < END && steps + next.steps >= END))
                break;
            bits += next.length + next.size;
            steps += next.steps;
        }
        c->strides[p] = (uint32_t)bits | (uint32_t)(steps > 0 ? steps : UNKNOWN) << 8;
    }
}

/* Tables of the pictures before are used again where they are the same. */
static codes *codes_for(codes *c, const JHUFF_TBL *from, int is_dc)
{
    if (c->made && memcmp(c->made_from.bits, from->bits, sizeof from->bits) == 0
        && memcmp(c->made_from.huffval, from->huffval, sizeof from->huffval) == 0)
        return c;
    entry entries[1 << PEEK];
    c->made_from = *from;
    list_codes(c, entries, is_dc);
    make_looks(c, entries, is_dc);
    if (!is_dc)
        make_strides(c, entries);
    c->made = 1;
    return c;
}

/* ── the bits ────────────────────────────────────────────────────────────────────────────────── */

/* Byte by byte: after FF stands 00, which says nothing, or a mark, where the data ends. Zeros are
 * made up behind the end. */
static __attribute__((noinline)) void fill_by_bytes(scan *s, reader *r)
{
    for (; r->left < 56; r->left += 8) {
        const uint8_t *next = r->next;
        if (next >= s->end || (*next == 0xFF && (next + 1 >= s->end || next[1] != 0))) {
            s->made_up += 8;
            continue;
        }
        r->bits |= (uint64_t)*next << (56 - r->left);
        r->next += *next == 0xFF ? 2 : 1;
    }
}

/* At least 56 bits. What stands behind them is never wrong, just not counted. */
INLINE void fill(scan *s, reader *r)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t bytes;
    if (r->next <= s->safe) {
        memcpy(&bytes, r->next, sizeof bytes);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        bytes = __builtin_bswap64(bytes);
#endif
        if (((~bytes - ones) & bytes & ones << 7) == 0) {  /* none is FF */
            r->bits |= bytes >> r->left;
            r->next += (63 - r->left) >> 3;
            r->left |= 56;
            return;
        }
    }
    /* A copy, so that the reader itself can stay in registers. */
    reader slow = {.next = r->next, .bits = r->bits, .left = r->left};
    fill_by_bytes(s, &slow);
    r->next = slow.next, r->bits = slow.bits, r->left = slow.left;
}

/* Any of the looks' and strides' bits may be given: those for `bits` are the last. */
INLINE void take(reader *r, uint64_t bits)
{
    r->bits <<= bits & 63;
    r->left -= (uint8_t)bits;
}

/* What stands behind `before` bits and has 63 - `less` of them: those that begin with 0 are negative,
 * and tell by how much with each bit turned. */
INLINE int value_at(uint64_t bits, uint64_t before, uint64_t less)
{
    int64_t value = (int64_t)(bits << (before & 63)), turned = ~value >> 63;
    return (int)(((uint64_t)(value ^ turned) >> 1 >> (less & 63) ^ turned) - turned);
}

/* One code by its length, however long: how far it goes, and its value. */
static __attribute__((noinline)) int search(scan *s, reader *r, const codes *c, int is_dc, int *value)
{
    fill(s, r);
    int bits = (int)(r->bits >> 48), length = 1;
    while (length <= 16 && bits >= c->limit[length])
        length++;
    if (length > 16)
        return UNKNOWN;
    int symbol = c->made_from.huffval[((bits >> (16 - length)) + c->shift[length]) & 255];
    *value = value_at(r->bits, length, 63 - (symbol & 15));
    take(r, length + (symbol & 15));
    return steps_of(symbol, is_dc);
}

INLINE int search_apart(scan *s, reader *r, const codes *c, int is_dc, int *value)
{
    int found = 0;
    reader slow = {.next = r->next, .bits = r->bits, .left = r->left};
    int steps = search(s, &slow, c, is_dc, &found);
    r->next = slow.next, r->bits = slow.bits, r->left = slow.left;
    *value = found;
    return steps;
}

/* ── the blocks ──────────────────────────────────────────────────────────────────────────────── */

enum { FIRST = 8, BOTH = 16, VALUE = 24, OTHER = 40 };  /* where it stands in a look */

/* The difference to the DC value before; 1 << 16 in trouble. */
INLINE int read_dc(scan *s, reader *r, const codes *c)
{
    fill(s, r);
    uint64_t look = c->looks[r->bits >> (64 - PEEK)];
    int value = value_at(r->bits, look >> VALUE, look >> (VALUE + 8));
    if ((uint8_t)(look >> FIRST) != UNKNOWN) {
        take(r, look);
        return value;
    }
    return search_apart(s, r, c, 1, &value) == UNKNOWN ? 1 << 16 : value;
}

/* All other values of a block, into places that are 0. 0: in trouble. */
INLINE int read_ac(scan *s, reader *r, const codes *c, JCOEF *block)
{
    size_t place = 1;                             /* the next one */
    int steps, value;
    for (;;) {
        fill(s, r);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {             /* a look is of PEEK + LARGEST bits at most */
            uint64_t look = c->looks[r->bits >> (64 - PEEK)], bits = r->bits;
            size_t first = place + (uint8_t)(look >> FIRST);
            size_t second = place + (uint8_t)(look >> BOTH);
            take(r, look);
            if (second >= PLACES) {
                if (first < PLACES)
                    block[PLACE[first - 1]] =
                        (JCOEF)value_at(bits, look >> VALUE, look >> (VALUE + 8));
                if (first == place + END || (first < PLACES && second == first + END))
                    return 1;
                r->bits = bits;                   /* as if we had not looked */
                r->left += (uint8_t)look;
                goto single;
            }
            /* The second goes first: where there is none it stands in the place of the other. */
            block[PLACE[second - 1]] =
                (JCOEF)value_at(bits, look >> OTHER, look >> (OTHER + 8));
            block[PLACE[first - 1]] = (JCOEF)value_at(bits, look >> VALUE, look >> (VALUE + 8));
            place = second;
        }
        continue;
    single:
        steps = search_apart(s, r, c, 0, &value);
        place += (size_t)steps;
        if (place > PLACES)
            return steps == END;
        block[PLACE[place - 1]] = (JCOEF)value;
        if (place == PLACES)
            return 1;
    }
}

/* Past all other values of a block. 0: in trouble. */
INLINE int skip_ac(scan *s, reader *r, const codes *c)
{
    int place = 1, steps, value;
    for (;;) {
        fill(s, r);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {             /* no longer than a look */
            uint32_t stride = c->strides[r->bits >> (64 - PEEK)];
            int to = place + (int)(stride >> 8);
            if (to >= PLACES) {
                if (to != PLACES && (stride >> 8 < END || to >= END + PLACES))
                    goto single;                  /* the last codes may be of the next block */
                take(r, stride);
                return 1;
            }
            take(r, stride);
            place = to;
        }
        continue;
    single:
        steps = search_apart(s, r, c, 0, &value);
        place += steps;
        if (place >= PLACES)
            return place == PLACES || steps == END;
    }
}

/* ── in libjpeg's place ──────────────────────────────────────────────────────────────────────── */

/* The data goes on behind a mark: nothing before it may be left over. 0: in trouble. */
static int restart(scan *s)
{
    const uint8_t *next = s->reader.next;
    int over = s->reader.left - s->made_up;
    if (over < 0 || over > 7)
        return 0;
    while (s->end - next >= 2 && next[0] == 0xFF && next[1] == 0xFF)
        next++;
    if (s->end - next < 2 || next[0] != 0xFF || next[1] != 0xD0 + (s->restarts & 7))
        return 0;
    s->reader = (reader){.next = next + 2};
    s->made_up = 0;
    s->restarts++;
    memset(s->values, 0, sizeof s->values);
    return 1;
}

/* One unit of blocks, read into where libjpeg wants it. */
FOR_EACH_PROCESSOR
static boolean read_unit(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
    scan *s = jpeg->client_data;
    if (jpeg->restart_interval > 0) {
        if (s->before_restart == 0) {
            if (!restart(s))
                trouble_in(jpeg);
            s->before_restart = (int)jpeg->restart_interval;
        }
        s->before_restart--;
    }
    int wanted = blocks != NULL && s->column >= s->first && s->column <= s->last;
    int sound = 1;
    reader r = s->reader;
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int more = read_dc(s, &r, s->dc[i]);
        uint32_t *value = &s->values[s->component[i]];
        *value += (uint32_t)more;
        if (!wanted) {
            sound &= skip_ac(s, &r, s->ac[i]) & (more != 1 << 16);
            continue;
        }
        JCOEF *block = blocks[i][0];
        block[0] = (JCOEF)*value;
        sound &= read_ac(s, &r, s->ac[i], block) & (more != 1 << 16);
    }
    s->reader = r;
    if (!sound || r.left < s->made_up)
        trouble_in(jpeg);
    s->column = s->column + 1 < (int)jpeg->MCUs_per_row ? s->column + 1 : 0;
    return TRUE;
}

/* After jpeg_start_decompress and jpeg_crop_scanline: read the codes here where that can be done.
 * Of each row the pixels [x, x + columns) are wanted, of blocks `side` wide. */
static void take_over(j_decompress_ptr jpeg, scan *s, int x, int columns, int side)
{
    /* A unit of one colour is a block, whatever its sampling. */
    int wide = jpeg->comps_in_scan == 1 ? side : jpeg->max_h_samp_factor * side;
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->comps_in_scan != jpeg->num_components
        || jpeg->blocks_in_MCU > MOST_BLOCKS || jpeg->comps_in_scan > 4
        || jpeg->Ss != 0 || jpeg->Se != PLACES - 1)  /* a lossless one has no AC codes */
        return;
    /* Near the end of a file that is cut, libjpeg gives up sooner than we would. */
    if (!has_end(jpeg->src->next_input_byte, jpeg->src->bytes_in_buffer))
        return;
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int number = jpeg->MCU_membership[i];
        const jpeg_component_info *component = jpeg->cur_comp_info[number];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        s->component[i] = number;
        s->dc[i] = codes_for(&s->dc_codes[dc], jpeg->dc_huff_tbl_ptrs[dc], 1);
        s->ac[i] = codes_for(&s->ac_codes[ac], jpeg->ac_huff_tbl_ptrs[ac], 0);
    }
    memset(s->values, 0, sizeof s->values);
    s->reader = (reader){.next = jpeg->src->next_input_byte};
    s->end = jpeg->src->next_input_byte + jpeg->src->bytes_in_buffer;
    s->safe = jpeg->src->bytes_in_buffer >= 8 ? s->end - 8 : NULL;
    s->made_up = 0;
    s->column = s->restarts = 0;
    s->before_restart = (int)jpeg->restart_interval;
    s->first = x / wide;
    s->last = (x + columns - 1) / wide;
    jpeg->client_data = s;
    jpeg->entropy->decode_mcu = read_unit;
}
