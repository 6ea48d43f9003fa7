/* Whether thousands of Python places still hold the objects that they held, without a step of the interpreter for each.
 *
 * A `Watch` is asked before every replay of a CUDA graph (dispatch/python_state.py); the same in Python takes five times
 * as long. It depends on no version of torch.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* How a value is read. Dicts and lists of a user's own kind are read past its methods, as what they are. */
typedef enum { ATTRIBUTE, OF_DICT, OF_LIST, OF_MAPPING } Way;

typedef struct {
  PyObject *holder, *key, *value;
  Py_ssize_t index; /* of a list: the key as a number */
  Way way;
} Place;

typedef struct {
  PyObject_HEAD
  Py_ssize_t place_count, sized_count;
  Place *places;
  PyObject **sized;
  Py_ssize_t *sizes;
} Watch;

static int watch_traverse(Watch *self, visitproc visit, void *arg) {
  for (Py_ssize_t i = 0; i < self->place_count; ++i) {
    Py_VISIT(self->places[i].holder);
    Py_VISIT(self->places[i].key);
    Py_VISIT(self->places[i].value);
  }
  for (Py_ssize_t i = 0; i < self->sized_count; ++i) Py_VISIT(self->sized[i]);
  return 0;
}

static int watch_clear(Watch *self) {
  const Py_ssize_t places = self->place_count, sized = self->sized_count;
  self->place_count = self->sized_count = 0; /* releasing objects may run Python code that comes back here */
  for (Py_ssize_t i = 0; i < places; ++i) {
    Py_CLEAR(self->places[i].holder);
    Py_CLEAR(self->places[i].key);
    Py_CLEAR(self->places[i].value);
  }
  for (Py_ssize_t i = 0; i < sized; ++i) Py_CLEAR(self->sized[i]);
  return 0;
}

static void watch_dealloc(Watch *self) {
  PyObject_GC_UnTrack(self);
  watch_clear(self);
  PyMem_Free(self->places);
  PyMem_Free(self->sized);
  PyMem_Free(self->sizes);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static Way way_to_item(PyObject *holder) {
  return PyDict_Check(holder) ? OF_DICT : PyList_Check(holder) ? OF_LIST : OF_MAPPING;
}

/* Watch(places: list of (holder, key, value, whether the key is an attribute's name and not an item's),
 *       sized: list of (container, its length)) */
static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *places, *sized;
  if (kwargs || !PyArg_ParseTuple(args, "O!O!", &PyList_Type, &places, &PyList_Type, &sized)) return NULL;
  Watch *self = (Watch *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->places = PyMem_Calloc((size_t)PyList_GET_SIZE(places) + 1, sizeof *self->places);
  self->sized = PyMem_Calloc((size_t)PyList_GET_SIZE(sized) + 1, sizeof *self->sized);
  self->sizes = PyMem_Calloc((size_t)PyList_GET_SIZE(sized) + 1, sizeof *self->sizes);
  if (!self->places || !self->sized || !self->sizes) PyErr_NoMemory();
  for (Py_ssize_t i = 0; !PyErr_Occurred() && i < PyList_GET_SIZE(places); ++i) {
    Place *place = &self->places[i];
    int attribute;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "OOOp", &place->holder, &place->key, &place->value, &attribute))
      break;
    place->way = attribute ? ATTRIBUTE : way_to_item(place->holder);
    place->index = place->way == OF_LIST ? PyLong_AsSsize_t(place->key) : 0;
    Py_INCREF(place->holder);
    Py_INCREF(place->key);
    Py_INCREF(place->value);
    self->place_count = i + 1;
  }
  for (Py_ssize_t i = 0; !PyErr_Occurred() && i < PyList_GET_SIZE(sized); ++i) {
    if (!PyArg_ParseTuple(PyList_GET_ITEM(sized, i), "On", &self->sized[i], &self->sizes[i])) break;
    Py_INCREF(self->sized[i]);
    self->sized_count = i + 1;
  }
  if (PyErr_Occurred()) Py_CLEAR(self);
  return (PyObject *)self;
}

/* 1: it does, 0: it does not, and no exception is set. */
static int holds(const Place *place) {
  if (place->way == OF_DICT) {
    PyObject *now = PyDict_GetItemWithError(place->holder, place->key);
    if (!now) PyErr_Clear();
    return now == place->value;
  }
  if (place->way == OF_LIST)
    return place->index < PyList_GET_SIZE(place->holder) && PyList_GET_ITEM(place->holder, place->index) == place->value;
  PyObject *now = place->way == ATTRIBUTE ? PyObject_GetAttr(place->holder, place->key)
                                          : PyObject_GetItem(place->holder, place->key);
  if (!now) PyErr_Clear();
  Py_XDECREF(now); /* only its address is compared, and `value` is held */
  return now == place->value;
}

static Py_ssize_t length(PyObject *container) {
  if (PyDict_Check(container)) return PyDict_GET_SIZE(container);
  if (PyList_Check(container)) return PyList_GET_SIZE(container);
  const Py_ssize_t size = PyObject_Size(container);
  if (size < 0) PyErr_Clear();
  return size;
}

static PyObject *watch_unchanged(Watch *self, PyObject *Py_UNUSED(ignored)) {
  for (Py_ssize_t i = 0; i < self->place_count; ++i)
    if (!holds(&self->places[i])) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < self->sized_count; ++i)
    if (length(self->sized[i]) != self->sizes[i]) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

static PyMethodDef watch_methods[] = {
  {"unchanged", (PyCFunction)watch_unchanged, METH_NOARGS, "unchanged(): whether all hold the very objects, and as many"},
  {NULL, NULL, 0, NULL},
};
static PyTypeObject WatchType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_watch.Watch", .tp_basicsize = sizeof(Watch),
  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_new = watch_new, .tp_dealloc = (destructor)watch_dealloc,
  .tp_traverse = (traverseproc)watch_traverse, .tp_clear = (inquiry)watch_clear, .tp_methods = watch_methods,
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "kforge_watch", .m_size = -1};

PyMODINIT_FUNC PyInit_kforge_watch(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddType(module, &WatchType) < 0) Py_CLEAR(module);
  return module;
}
