/* The codes of a sequential JPEG, read about twice as fast as libjpeg reads them.
 *
 * Most of the time of a JPEG goes into its Huffman codes, one after another, none of which can be
 * left out. Here one look into a table gives up to two whole coefficients: codes, the zeros before
 * each, and values. Blocks that nobody will see are only stepped over, several codes at a time. The
 * data is first made plain, a few thousand bytes at a time, so that codes are read without checks.
 *
 * libjpeg does all the rest. It calls a function for each unit of blocks, and take_over puts ours
 * in that place. Anything but sound data ends in trouble_in, which does not return: the caller begins
 * again with libjpeg's own function, so that damage is treated as libjpeg treats it.
 */
enum {
    PEEK = 10, DC_PEEK = 8, REACH = 11,           /* bits of a look, one at a DC, and a stride */
    PLACES = 64,                                  /* of a block */
    END = 64, UNKNOWN = 128,                      /* steps: the block is done; the look won't do */
    MOST_BLOCKS = 10,                             /* in a unit */
    MOST_BITS = 18,                               /* that a look takes: three for each fill */
    MOST_BYTES = MOST_BLOCKS * PLACES * 4,        /* of a unit: codes of 16 bits, values of 15 */
    ROOM = 8192 + MOST_BYTES,                     /* bytes made plain at a time */
};

/* libjpeg's own structure begins so, in all its versions. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

/* A look is of one or two codes, a byte each from the right: bits taken; places gone on with all but the
 * last code, and with all; bits before the last value, and 63 less its own. At the left stands the first
 * of two values: all its bits were seen. A DC look is of one code: bits taken, bits before the value,
 * and 63 less its own. A stride is of as many codes as can be told: bits taken, and places gone on.
 * All are small: what falls out of the first cache costs more than shorter looks. */
typedef struct {
    union {
        struct {
            uint64_t looks[1 << PEEK];
            uint16_t strides[1 << REACH];
        };
        uint32_t dc_looks[1 << DC_PEEK];
    };
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
    reader reader;                                /* of plain */
    const uint8_t *data, *end;                    /* what was not made plain yet */
    const uint8_t *last;                          /* where plain ends, but for zeros */
    int at_mark;                                  /* no more can be made plain */
    codes *dc[MOST_BLOCKS], *ac[MOST_BLOCKS];     /* of each block of a unit */
    int component[MOST_BLOCKS];
    uint32_t values[4];                           /* the last DC of each component */
    int column, first, last_column;               /* of units; those in between are wanted */
    int before_restart, restarts;
    codes dc_codes[NUM_HUFF_TBLS], ac_codes[NUM_HUFF_TBLS];
    uint8_t plain[ROOM + MOST_BYTES + 64];
} scan;

static const uint8_t PLACE[PLACES] = {            /* of the first, second, ... in a block */
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

#define INLINE static inline __attribute__((always_inline))

/* ── the tables ──────────────────────────────────────────────────────────────────────────────── */

enum { FIRST = 8, ALL = 16, BEFORE = 24, LESS = 32, VALUE = 48 };  /* where it stands in a look */
enum { DC_BEFORE = 8, DC_LESS = 16 };

/* How far a symbol goes; UNKNOWN where sound data has no such symbol. */
INLINE int steps_of(int symbol, int is_dc)
{
    if (is_dc)
        return 1;
    if (symbol == 0)
        return END;
    return (symbol & 15) == 0 && symbol != 0xF0 ? UNKNOWN : (symbol >> 4) + 1;
}

/* What a number of `size` bits says: those that begin with 0 are negative. */
INLINE int value_of(int number, int size)
{
    return size > 0 && number >> (size - 1) == 0 ? number - (1 << size) + 1 : number;
}

/* The last code of a look, with what stands before it. */
INLINE uint64_t look_of(int length, int size, int steps, int before)
{
    return (uint64_t)(before + length + size) | (uint64_t)steps << ALL
           | (uint64_t)(before + length) << BEFORE | (uint64_t)(63 - size) << LESS;
}

typedef struct {
    int code, length, size, steps;
} symbol;

/* All symbols that a look may begin with, from the shortest code on; gives how many. */
static int list_symbols(codes *c, symbol *symbols, int is_dc)
{
    const JHUFF_TBL *from = &c->made_from;
    int code = 0, number = 0, found = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        c->shift[length] = number - code;
        for (int i = 0; i < from->bits[length] && number < 256; i++, code++, number++) {
            int value = from->huffval[number], steps = steps_of(value, is_dc);
            if (length <= REACH && steps != UNKNOWN && length + (value & 15) <= MOST_BITS
                && code < 1 << length)
                symbols[found++] = (symbol){code, length, value & 15, steps};
        }
        c->limit[length] = code << (16 - length);
    }
    return found;
}

static void make_dc_looks(codes *c, const symbol *symbols, int count)
{
    memset(c->dc_looks, 0, sizeof c->dc_looks);
    for (const symbol *s = symbols; s < symbols + count && s->length <= DC_PEEK; s++) {
        uint32_t *to = c->dc_looks + ((size_t)s->code << (DC_PEEK - s->length));
        for (int p = 0; p < 1 << (DC_PEEK - s->length); p++)
            to[p] = (uint32_t)(s->length + s->size) | (uint32_t)s->length << DC_BEFORE
                    | (uint32_t)(63 - s->size) << DC_LESS;
    }
}

/* Where the code s leaves bits for another one, have both in its looks. */
static void look_behind(uint64_t *looks, const symbol *s, const symbol *symbols, int count)
{
    int before = s->length + s->size, rest = PEEK - before;
    looks += (size_t)s->code << (PEEK - s->length);
    for (const symbol *t = symbols; t < symbols + count && t->length <= rest; t++) {
        uint64_t both = look_of(t->length, t->size, s->steps + t->steps, before)
                        | (uint64_t)s->steps << FIRST;
        for (int number = 0; number < 1 << s->size && (uint8_t)both <= MOST_BITS; number++) {
            uint64_t *to = looks + ((size_t)number << rest)
                           + ((size_t)t->code << (rest - t->length));
            for (int p = 0; p < 1 << (rest - t->length); p++)
                to[p] = both | (uint64_t)value_of(number, s->size) << VALUE;
        }
    }
}

static void make_looks(codes *c, const symbol *symbols, int count)
{
    for (int p = 0; p < 1 << PEEK; p++)
        c->looks[p] = (uint64_t)UNKNOWN << ALL | (uint64_t)UNKNOWN << FIRST;
    for (const symbol *s = symbols; s < symbols + count && s->length <= PEEK; s++) {
        uint64_t *to = c->looks + ((size_t)s->code << (PEEK - s->length));
        uint64_t first = s->steps < END ? (uint64_t)s->steps << FIRST : 0;
        for (int p = 0; p < 1 << (PEEK - s->length); p++)
            to[p] = look_of(s->length, s->size, s->steps, 0) | first;
        if (s->steps < END)
            look_behind(c->looks, s, symbols, count);
    }
}

/* From the strides of few bits to those of many: a code, and the stride of the bits behind it. */
FOR_EACH_PROCESSOR
static void make_strides(codes *c, const symbol *symbols, int count)
{
    uint16_t all[1 << REACH];                     /* those of k bits from 1 << k on */
    for (int bits = 1; bits <= REACH; bits++) {
        uint16_t *strides = bits < REACH ? all + (1 << bits) : c->strides;
        memset(strides, 0, sizeof *strides << bits);
        for (const symbol *s = symbols; s < symbols + count && s->length <= bits; s++) {
            uint16_t *to = strides + ((size_t)s->code << (bits - s->length));
            int taken = s->length + s->size, rest = bits - taken;
            uint16_t alone = (uint16_t)(taken | s->steps << 8);
            if (rest < 1 || s->steps == END) {
                for (int p = 0; p < 1 << (bits - s->length); p++)
                    to[p] = alone;
                continue;
            }
            const uint16_t *behind = all + (1 << rest);
            for (int number = 0; number < 1 << s->size; number++, to += 1 << rest)
                for (int p = 0; p < 1 << rest; p++) {
                    uint16_t sum = (uint16_t)(alone + behind[p]);
                    /* Places beyond the block would look like its end. */
                    int fits = (sum & 255) <= MOST_BITS
                               && (sum >> 8 < END) == (behind[p] >> 8 < END);
                    to[p] = fits ? sum : alone;
                }
        }
    }
    for (int p = 0; p < 1 << REACH; p++)
        if (c->strides[p] == 0)
            c->strides[p] = UNKNOWN << 8;
}

/* Tables of the pictures before are used again where they are the same. */
static codes *codes_for(codes *c, const JHUFF_TBL *from, int is_dc)
{
    if (c->made && memcmp(c->made_from.bits, from->bits, sizeof from->bits) == 0
        && memcmp(c->made_from.huffval, from->huffval, sizeof from->huffval) == 0)
        return c;
    symbol symbols[256];
    c->made_from = *from;
    int count = list_symbols(c, symbols, is_dc);
    if (is_dc) {
        make_dc_looks(c, symbols, count);
    } else {
        make_looks(c, symbols, count);
        make_strides(c, symbols, count);
    }
    c->made = 1;
    return c;
}

/* ── the bits ────────────────────────────────────────────────────────────────────────────────── */

/* The data plain, for one unit at least: after FF stands 00, which says nothing, or a mark, where it
 * ends. Zeros stand behind the end. */
static void make_plain(scan *s)
{
    const uint64_t ones = 0x0101010101010101u;
    const uint8_t *data = s->data, *end = s->end;
    size_t kept = (size_t)(s->last - s->reader.next);
    uint8_t *to = s->plain + kept, *full = s->plain + ROOM;
    uint64_t bytes;
    memmove(s->plain, s->reader.next, kept);
    s->reader.next = s->plain;
    while (to < full && end - data > (ptrdiff_t)sizeof bytes) {
        memcpy(&bytes, data, sizeof bytes);
        memcpy(to, &bytes, sizeof bytes);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
        bytes = __builtin_bswap64(bytes);
#endif
        uint64_t found = (~bytes - ones) & bytes & ones << 7;  /* the lowest bit is in the first FF */
        int before = found == 0 ? 8 : __builtin_ctzll(found) >> 3;
        data += before, to += before;
        if (found == 0)
            continue;
        if (data[1] != 0)
            break;
        data += 2, to++;
    }
    while (to < full && data < end) {             /* the last bytes, or none */
        int is_ff = *data == 0xFF;
        if (is_ff && (end - data < 2 || data[1] != 0))
            break;
        *to++ = *data;
        data += 1 + is_ff;
    }
    s->at_mark = to < full;
    s->data = data;
    s->last = to;
    if (s->at_mark)
        memset(to, 0, MOST_BYTES + 16);
}

/* Behind the end by so many bits, or less than 0. */
INLINE ptrdiff_t beyond(const scan *s, const reader *r)
{
    return (r->next - s->last) * 8 - r->left;
}

/* At least 56 bits. What stands behind them is never wrong, just not counted. */
INLINE void fill(reader *r)
{
    uint64_t bytes;
    memcpy(&bytes, r->next, sizeof bytes);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bytes = __builtin_bswap64(bytes);
#endif
    r->bits |= bytes >> r->left;
    r->next += (63 - r->left) >> 3;
    r->left |= 56;
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
static __attribute__((noinline)) int search(reader *r, const codes *c, int is_dc, int *value)
{
    fill(r);
    int bits = (int)(r->bits >> 48), length = bits < c->limit[8] ? 1 : 9;  /* most are long */
    while (length <= 16 && bits >= c->limit[length])
        length++;
    if (length > 16)
        return UNKNOWN;
    int symbol = c->made_from.huffval[((bits >> (16 - length)) + c->shift[length]) & 255];
    *value = value_at(r->bits, length, 63 - (symbol & 15));
    take(r, length + (symbol & 15));
    return steps_of(symbol, is_dc);
}

/* On a copy, so that the reader itself can stay in registers. */
INLINE int search_apart(reader *r, const codes *c, int is_dc, int *value)
{
    int found = 0;
    reader slow = {.next = r->next, .bits = r->bits, .left = r->left};
    int steps = search(&slow, c, is_dc, &found);
    r->next = slow.next, r->bits = slow.bits, r->left = slow.left;
    *value = found;
    return steps;
}

/* ── the blocks ──────────────────────────────────────────────────────────────────────────────── */

/* The difference to the DC value before; 1 << 16 in trouble. */
INLINE int read_dc(reader *r, const codes *c)
{
    fill(r);
    uint32_t look = c->dc_looks[r->bits >> (64 - DC_PEEK)];
    int value = value_at(r->bits, look >> DC_BEFORE, look >> DC_LESS);
    if (look != 0) {
        take(r, look);
        return value;
    }
    return search_apart(r, c, 1, &value) == UNKNOWN ? 1 << 16 : value;
}

/* All other values of a block, into places that are 0. 0: in trouble. */
INLINE int read_ac(reader *r, const codes *c, JCOEF *block)
{
    size_t place = 1, first;                      /* the next one */
    uint64_t look, bits;
    int steps, value;
    JCOEF nowhere;
    for (;;) {
        fill(r);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            bits = r->bits;
            look = c->looks[bits >> (64 - PEEK)];
            first = place + (uint8_t)(look >> FIRST);
            size_t last = place + (uint8_t)(look >> ALL);
            take(r, look);
            if (last >= PLACES)
                goto last;
            /* Where there is one value, it overwrites the other. */
            block[PLACE[first - 1]] = (JCOEF)((int64_t)look >> VALUE);
            block[PLACE[last - 1]] = (JCOEF)value_at(bits, look >> BEFORE, look >> LESS);
            place = last;
        }
        continue;
    last:
        if (look >> ALL & END && first < PLACES) {
            *(look >> FIRST & 255 ? &block[PLACE[first - 1]] : &nowhere) =
                (JCOEF)((int64_t)look >> VALUE);
            return 1;
        }
        r->bits = bits;                           /* as if we had not looked */
        r->left += (uint8_t)look;
        steps = search_apart(r, c, 0, &value);
        place += (size_t)steps;
        if (place > PLACES)
            return steps == END;
        block[PLACE[place - 1]] = (JCOEF)value;
        if (place == PLACES)
            return 1;
    }
}

/* Past all other values of a block. 0: in trouble. */
INLINE int skip_ac(reader *r, const codes *c)
{
    int place = 1, to, steps, value;
    uint32_t stride;
    for (;;) {
        fill(r);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            stride = c->strides[r->bits >> (64 - REACH)];
            to = place + (int)(stride >> 8);
            if (to >= PLACES)
                goto last;
            take(r, stride);
            place = to;
        }
        continue;
    last:
        if (to == PLACES || (stride >> 8 & END && to < END + PLACES)) {
            take(r, stride);
            return 1;
        }
        steps = search_apart(r, c, 0, &value);    /* the last codes may be of the next block */
        place += steps;
        if (place >= PLACES)
            return place == PLACES || steps == END;
    }
}

/* ── in libjpeg's place ──────────────────────────────────────────────────────────────────────── */

/* Codes that rest on none before them. */
static void begin_at(scan *s, const uint8_t *data)
{
    s->data = data;
    s->reader = (reader){.next = s->plain};
    s->last = s->plain;
    s->at_mark = 0;
    memset(s->values, 0, sizeof s->values);
}

/* The data goes on behind a mark: nothing before it may be left over. 0: in trouble. */
static int restart(scan *s)
{
    const uint8_t *next = s->data;
    ptrdiff_t over = -beyond(s, &s->reader);
    if (!s->at_mark || over < 0 || over > 7)
        return 0;
    while (s->end - next >= 2 && next[0] == 0xFF && next[1] == 0xFF)
        next++;
    if (s->end - next < 2 || next[0] != 0xFF || next[1] != 0xD0 + (s->restarts & 7))
        return 0;
    begin_at(s, next + 2);
    s->restarts++;
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
    if (!s->at_mark && s->last - s->reader.next < MOST_BYTES)
        make_plain(s);
    int wanted = blocks != NULL && s->column >= s->first && s->column <= s->last_column;
    int sound = 1;
    reader r = s->reader;
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int more = read_dc(&r, s->dc[i]);
        uint32_t value = s->values[s->component[i]] += (uint32_t)more;
        sound &= more != 1 << 16;
        if (!wanted) {
            sound &= skip_ac(&r, s->ac[i]);
            continue;
        }
        JCOEF *block = blocks[i][0];
        block[0] = (JCOEF)value;
        sound &= read_ac(&r, s->ac[i], block);
    }
    s->reader = r;
    if (!sound || beyond(s, &r) > 0)
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
    s->end = jpeg->src->next_input_byte + jpeg->src->bytes_in_buffer;
    begin_at(s, jpeg->src->next_input_byte);
    s->column = s->restarts = 0;
    s->before_restart = (int)jpeg->restart_interval;
    s->first = x / wide;
    s->last_column = (x + columns - 1) / wide;
    jpeg->client_data = s;
    jpeg->entropy->decode_mcu = read_unit;
}
