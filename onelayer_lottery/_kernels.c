/* The loops of kernels.py, compiled: one pass over memory instead of several.
   They give the same bits as NumPy's. All arrays are bit patterns of fp32 numbers,
   but for packed signs: a bit each, the first of 32 the lowest of its word.

   Threads are OpenMP's, of the library that torch has loaded, if it has this name:
   its threads stay awake, and others would have to share the cores with them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAGNITUDE 0x7FFFFFFFu
#define WORD 32 /* values whose signs are packed, and that are searched, together */
#define BLOCK (1 << 15) /* values that one thread takes at a time: whole words */

/* 1 << i: by a table loops over the bits of a word become vector instructions. */
#define ROW(i) 1u << (i), 2u << (i), 4u << (i), 8u << (i)
static const uint32_t BIT[WORD] = {ROW(0),  ROW(4),  ROW(8),  ROW(12),
                                   ROW(16), ROW(20), ROW(24), ROW(28)};

static Py_ssize_t least(Py_ssize_t a, Py_ssize_t b) { return a < b ? a : b; }

static Py_ssize_t words(Py_ssize_t size) { return (size + WORD - 1) / WORD; }

static int of_length(Py_ssize_t size, const Py_buffer *buffers, int count) {
  for (int i = 0; i < count; i++) {
    if (buffers[i].len != size * 4) {
      PyErr_SetString(PyExc_ValueError, "arrays of different lengths");
      return 0;
    }
  }
  return 1;
}

static void release(Py_buffer *buffers, int count) {
  for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
}

typedef struct {
  Py_ssize_t dropped, found;
} Count;

/* Of the values from start to end; places and heights as far as there is room. */
static Count write_block(const uint32_t *restrict scores,
                         const uint32_t *restrict frozen, uint32_t *restrict out,
                         uint32_t *restrict signs, int32_t *restrict places,
                         int32_t *restrict heights, Py_ssize_t room, uint32_t low,
                         uint32_t width, Py_ssize_t start, Py_ssize_t end) {
  Count count = {0, 0};
  for (Py_ssize_t from = start; from < end; from += WORD) {
    const Py_ssize_t to = least(from + WORD, end);
    uint32_t below = 0, near = 0, negative = 0;
    for (Py_ssize_t i = from; i < to; i++) {
      const uint32_t above = (scores[i] & MAGNITUDE) - low;
      const uint32_t drop = (uint32_t)((int32_t)above >> 31);
      out[i] = frozen[i] & ~drop;
      below += drop & 1;
      near |= above < width;
      negative |= (uint32_t)((int32_t)scores[i] >> 31) & BIT[i - from];
    }
    signs[from / WORD] = negative;
    count.dropped += below;
    if (!near) continue;
    for (Py_ssize_t i = from; i < to; i++) {
      const uint32_t above = (scores[i] & MAGNITUDE) - low;
      if (above < width && count.found++ < room) {
        places[count.found - 1] = (int32_t)i;
        heights[count.found - 1] = (int32_t)above;
      }
    }
  }
  return count;
}

/* write_above(scores, frozen, out, signs, places, heights, low, width, threads)
   -> (dropped, found), or (dropped, -1) if there is no room for all places

   signs, packed, are those of the scores. Room is shared out evenly: each block of
   values has the same part of it. */
static PyObject *write_above(PyObject *module, PyObject *args) {
  Py_buffer b[6];
  unsigned int low, width;
  int threads;
  if (!PyArg_ParseTuple(args, "y*y*w*w*w*w*IIi", &b[0], &b[1], &b[2], &b[3], &b[4],
                        &b[5], &low, &width, &threads))
    return NULL;
  const Py_ssize_t size = b[0].len / 4, all_room = b[4].len / 4;
  const Py_ssize_t blocks = (size + BLOCK - 1) / BLOCK;
  Count *counts = NULL;
  if (of_length(size, b, 3) && of_length(words(size), b + 3, 1) &&
      of_length(all_room, b + 4, 2)) {
    counts = PyMem_Malloc(blocks * sizeof(Count));
    if (!counts) PyErr_NoMemory();
  }
  if (!counts) {
    release(b, 6);
    return NULL;
  }
  int32_t *places = b[4].buf, *heights = b[5].buf;
  const Py_ssize_t room = blocks ? all_room / blocks : 0;
  Py_ssize_t dropped = 0, found = 0;
  Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) if (blocks > 1)
  for (Py_ssize_t n = 0; n < blocks; n++)
    counts[n] = write_block(b[0].buf, b[1].buf, b[2].buf, b[3].buf, places + n * room,
                            heights + n * room, room, low, width, n * BLOCK,
                            least((n + 1) * BLOCK, size));
  for (Py_ssize_t n = 0; n < blocks; n++) {
    dropped += counts[n].dropped;
    if (found < 0) continue;
    if (counts[n].found > room) {
      found = -1;
      continue;
    }
    const size_t bytes = counts[n].found * 4;
    memmove(places + found, places + n * room, bytes);
    memmove(heights + found, heights + n * room, bytes);
    found += counts[n].found;
  }
  Py_END_ALLOW_THREADS
  PyMem_Free(counts);
  release(b, 6);
  return Py_BuildValue("nn", dropped, found);
}

static uint32_t product(uint32_t grad, uint32_t frozen) {
  float slope, weight;
  memcpy(&slope, &grad, 4);
  memcpy(&weight, &frozen, 4);
  slope *= weight;
  uint32_t bits;
  memcpy(&bits, &slope, 4);
  return bits;
}

/* pass_on(grad, frozen, scores, out, packed, threads): out = grad * frozen * sign(scores)

   scores may be their signs, packed: to read a bit instead of a number makes it a
   third faster. */
static PyObject *pass_on(PyObject *module, PyObject *args) {
  Py_buffer b[4];
  int packed, threads;
  if (!PyArg_ParseTuple(args, "y*y*y*w*pi", &b[0], &b[1], &b[2], &b[3], &packed,
                        &threads))
    return NULL;
  const Py_ssize_t size = b[0].len / 4;
  if (!(of_length(size, b, 2) && of_length(packed ? words(size) : size, b + 2, 1) &&
        of_length(size, b + 3, 1))) {
    release(b, 4);
    return NULL;
  }
  const uint32_t *grad = b[0].buf; /* may be the same as out */
  const uint32_t *restrict frozen = b[1].buf;
  const uint32_t *restrict scores = b[2].buf;
  uint32_t *out = b[3].buf;
  Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) if (size > BLOCK)
  for (Py_ssize_t n = 0; n < words(size); n++) {
    const Py_ssize_t from = n * WORD, count = least(WORD, size - from);
    if (packed) {
      const uint32_t negative = scores[n];
#pragma omp simd
      for (Py_ssize_t i = 0; i < count; i++)
        out[from + i] = product(grad[from + i], frozen[from + i]) ^
                        (negative & BIT[i] ? ~MAGNITUDE : 0);
    } else {
#pragma omp simd
      for (Py_ssize_t i = 0; i < count; i++)
        out[from + i] = product(grad[from + i], frozen[from + i]) ^
                        (scores[from + i] & ~MAGNITUDE);
    }
  }
  Py_END_ALLOW_THREADS
  release(b, 4);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"write_above", write_above, METH_VARARGS, NULL},
    {"pass_on", pass_on, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods,
};

PyMODINIT_FUNC PyInit__kernels(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddIntMacro(module, BLOCK)) Py_CLEAR(module);
  return module;
}
