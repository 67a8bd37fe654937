/* The loops of kernels.py, compiled: one pass over memory instead of several.
   They give the same bits as NumPy's. All arrays are bit patterns of fp32 numbers,
   but for grad and frozen in pass_on, which are multiplied as such. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAGNITUDE 0x7FFFFFFFu
#define STRIDE 64 /* values that are searched for the bracket together */

static int of_one_length(const Py_buffer *buffers, int count) {
  for (int i = 0; i < count; i++) {
    if (buffers[i].len != buffers[0].len || buffers[i].len % 4) {
      PyErr_SetString(PyExc_ValueError, "arrays of different lengths");
      return 0;
    }
  }
  return 1;
}

static void release(Py_buffer *buffers, int count) {
  for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
}

/* write_above(scores, frozen, out, places, heights, low, width) -> (dropped, found) */
static PyObject *write_above(PyObject *module, PyObject *args) {
  Py_buffer b[5];
  unsigned int low, width;
  if (!PyArg_ParseTuple(args, "y*y*w*w*w*II", &b[0], &b[1], &b[2], &b[3], &b[4], &low,
                        &width))
    return NULL;
  if (!of_one_length(b, 5)) {
    release(b, 5);
    return NULL;
  }
  const uint32_t *restrict scores = b[0].buf;
  const uint32_t *restrict frozen = b[1].buf;
  uint32_t *restrict out = b[2].buf;
  int32_t *restrict places = b[3].buf;
  int32_t *restrict heights = b[4].buf;
  const Py_ssize_t size = b[0].len / 4;
  Py_ssize_t dropped = 0, found = 0;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t start = 0; start < size; start += STRIDE) {
    const Py_ssize_t end = start + STRIDE < size ? start + STRIDE : size;
    uint32_t below = 0, near = 0;
    for (Py_ssize_t i = start; i < end; i++) {
      const uint32_t above = (scores[i] & MAGNITUDE) - low;
      const uint32_t drop = (uint32_t)((int32_t)above >> 31);
      out[i] = frozen[i] & ~drop;
      below += drop & 1;
      near |= above < width;
    }
    dropped += below;
    if (near) {
      for (Py_ssize_t i = start; i < end; i++) {
        const uint32_t above = (scores[i] & MAGNITUDE) - low;
        if (above < width) {
          places[found] = (int32_t)i;
          heights[found++] = (int32_t)above;
        }
      }
    }
  }
  Py_END_ALLOW_THREADS
  release(b, 5);
  return Py_BuildValue("nn", dropped, found);
}

/* pass_on(grad, frozen, scores, out): out = grad * frozen * sign(scores) */
static PyObject *pass_on(PyObject *module, PyObject *args) {
  Py_buffer b[4];
  if (!PyArg_ParseTuple(args, "y*y*y*w*", &b[0], &b[1], &b[2], &b[3])) return NULL;
  if (!of_one_length(b, 4)) {
    release(b, 4);
    return NULL;
  }
  const float *restrict grad = b[0].buf;
  const float *restrict frozen = b[1].buf;
  const uint32_t *restrict scores = b[2].buf;
  uint32_t *restrict out = b[3].buf;
  const Py_ssize_t size = b[0].len / 4;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; i < size; i++) {
    const float slope = grad[i] * frozen[i];
    uint32_t bits;
    memcpy(&bits, &slope, 4);
    out[i] = bits ^ (scores[i] & ~MAGNITUDE);
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

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&definition); }
