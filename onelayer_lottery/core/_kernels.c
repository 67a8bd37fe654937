/* The loops behind kernels.py: one pass over memory where torch takes several.
   All arrays are bit patterns of fp32 numbers.

   The threads are those of OpenMP, from the library that torch has loaded if it goes
   by the same name. torch's threads spin while they wait, so a second pool of threads
   would compete with them for the cores. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAGNITUDE 0x7FFFFFFFu
#define GROUP 32 /* values that are searched together */
#define BLOCK (1 << 15) /* values that one thread takes at a time */

static Py_ssize_t least(Py_ssize_t a, Py_ssize_t b) { return a < b ? a : b; }

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

/* Handle the values from start to end; store indices and offsets while there is room,
   but count all of them. */
static Count write_block(const uint32_t *restrict scores,
                         const uint32_t *restrict frozen, uint32_t *restrict out,
                         int32_t *restrict indices, int32_t *restrict offsets,
                         Py_ssize_t room, uint32_t low, uint32_t width,
                         Py_ssize_t start, Py_ssize_t end) {
  Count count = {0, 0};
  for (Py_ssize_t from = start; from < end; from += GROUP) {
    const Py_ssize_t to = least(from + GROUP, end);
    uint32_t below = 0, near = 0;
    for (Py_ssize_t i = from; i < to; i++) {
      const uint32_t above = (scores[i] & MAGNITUDE) - low;
      const uint32_t drop = (uint32_t)((int32_t)above >> 31);
      out[i] = frozen[i] & ~drop;
      below += drop & 1;
      near |= above < width;
    }
    count.dropped += below;
    if (!near) continue;
    for (Py_ssize_t i = from; i < to; i++) {
      const uint32_t above = (scores[i] & MAGNITUDE) - low;
      if (above < width && count.found++ < room) {
        indices[count.found - 1] = (int32_t)i;
        offsets[count.found - 1] = (int32_t)above;
      }
    }
  }
  return count;
}

/* write_above(scores, frozen, out, indices, offsets, low, width, threads)
   -> (dropped, found), or (dropped, -1) if indices and offsets are too short

   Every block of values has an equal share of their room. */
static PyObject *write_above(PyObject *module, PyObject *args) {
  Py_buffer b[5];
  unsigned int low, width;
  int threads;
  if (!PyArg_ParseTuple(args, "y*y*w*w*w*IIi", &b[0], &b[1], &b[2], &b[3], &b[4],
                        &low, &width, &threads))
    return NULL;
  const Py_ssize_t size = b[0].len / 4, all_room = b[3].len / 4;
  const Py_ssize_t blocks = (size + BLOCK - 1) / BLOCK;
  Count *counts = NULL;
  if (of_length(size, b, 3) && of_length(all_room, b + 3, 2)) {
    counts = PyMem_Malloc(blocks * sizeof(Count));
    if (!counts) PyErr_NoMemory();
  }
  if (!counts) {
    release(b, 5);
    return NULL;
  }
  int32_t *indices = b[3].buf, *offsets = b[4].buf;
  const Py_ssize_t room = blocks ? all_room / blocks : 0;
  Py_ssize_t dropped = 0, found = 0;
  Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) if (blocks > 1)
  for (Py_ssize_t n = 0; n < blocks; n++)
    counts[n] = write_block(b[0].buf, b[1].buf, b[2].buf, indices + n * room,
                            offsets + n * room, room, low, width, n * BLOCK,
                            least((n + 1) * BLOCK, size));
  for (Py_ssize_t n = 0; n < blocks; n++) {
    dropped += counts[n].dropped;
    if (found < 0) continue;
    if (counts[n].found > room) {
      found = -1;
      continue;
    }
    const size_t bytes = counts[n].found * 4;
    memmove(indices + found, indices + n * room, bytes);
    memmove(offsets + found, offsets + n * room, bytes);
    found += counts[n].found;
  }
  Py_END_ALLOW_THREADS
  PyMem_Free(counts);
  release(b, 5);
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

/* score_gradient(grad, frozen, scores, out, threads): out = grad * frozen * sign(scores) */
static PyObject *score_gradient(PyObject *module, PyObject *args) {
  Py_buffer b[4];
  int threads;
  if (!PyArg_ParseTuple(args, "y*y*y*w*i", &b[0], &b[1], &b[2], &b[3], &threads))
    return NULL;
  const Py_ssize_t size = b[0].len / 4;
  if (!of_length(size, b, 4)) {
    release(b, 4);
    return NULL;
  }
  const uint32_t *restrict grad = b[0].buf;
  const uint32_t *restrict frozen = b[1].buf;
  const uint32_t *restrict scores = b[2].buf;
  uint32_t *restrict out = b[3].buf;
  Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for simd num_threads(threads) if (size > BLOCK)
  for (Py_ssize_t i = 0; i < size; i++)
    out[i] = product(grad[i], frozen[i]) ^ (scores[i] & ~MAGNITUDE);
  Py_END_ALLOW_THREADS
  release(b, 4);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"write_above", write_above, METH_VARARGS, NULL},
    {"score_gradient", score_gradient, METH_VARARGS, NULL},
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
