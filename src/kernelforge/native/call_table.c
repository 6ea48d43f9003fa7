/* What is done at every call of a model, without the interpreter: the call is put into words and looked up.
 *
 * A `Table` belongs to one replaced call site of torch. It remembers what the exact path in dispatch/callsite.py decided:
 * for each signature (shapes, strides, dtypes, devices, all other arguments by value) a `Plan`, or that eager runs.
 * `attempt` looks a call up, checks what differs between calls of one signature (the state of torch, lazy bits, grad),
 * allocates the output with torch and calls the binary's guarded entry. Where eager is known to run it makes the original
 * call itself, and it answers UNKNOWN wherever the exact path must look: it never decides anything itself.
 *
 * A `Function` takes the place of the function or method of torch: it attempts, and calls the exact path where it must.
 *
 * A `Ledger` belongs to one capture. It makes and times the calls of signatures that the recorder has described, and
 * answers UNKNOWN to all others.
 *
 * Tensors are read through the DLPack exchange API of torch, a stable C interface, so this file is compiled against
 * Python's and DLPack's headers alone and does not depend on a version of torch. Outputs are made through torch's C shim
 * for ahead-of-time compiled models where its symbols, and the one that wraps a tensor for Python, are found at run time;
 * else by `torch.empty_like` and `torch.empty_strided`, which take twice as long.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <time.h>
#include <tvm/ffi/c_api.h>

enum { MAX_TENSORS = 16, MAX_SCALARS = 8, MAX_WORDS = 192, MAX_HELD = 32, MAX_DEPTH = 3 };
enum { MAX_ENTRIES = 4096, MAX_WRONG = 16 };
enum { LONG_ELEMENTS = 1 << 13 }; /* a CPU kernel over so many lets other Python threads run */
enum Tag { TENSOR = 1, INTEGER, REAL, OBJECT, SEQUENCE, SLICE, KEYWORD };

typedef int (*Launch)(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result);

/* What torch is asked in every call; set once by `configure`. */
static struct {
  PyObject *tensor, *parameter;                 /* the two types that are served */
  PyObject *constants;                          /* frozenset of types whose objects are compared by identity */
  PyObject *sequences;                          /* frozenset: tuple, list, torch.Size */
  PyObject *none_of;                            /* tuple of functions; a true answer of any means: not here */
  PyObject *autocast_state;                     /* function: a tuple of dtypes and None */
  PyObject *grad_enabled, *autocast, *default_dtype, *float32, *is_neg, *empty_like, *forward_ad;
  PyObject *is_inference, *inference_mode, *increment_version;
  PyObject *capturing;                          /* function: whether the current CUDA stream is being captured */
  PyObject *function_modes;                     /* function: how many modes see functions of torch */
  PyObject *requires_grad, *current_level;      /* names of attributes */
  const DLPackExchangeAPI *exchange;
  /* Null where this torch lacks one of them. */
  int32_t (*empty_strided)(int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
                           int32_t device_index, void **tensor);
  int32_t (*delete_tensor)(void *tensor);
  PyObject *(*wrap)(const void *tensor);
  int64_t (*count_function_modes)(void);
} torch;

static PyObject *unknown;

/* A counter is a memoryview of one int64: where it counts is looked up once, and adding makes no object. */
static const char NOT_A_COUNTER[] = "a counter is a memoryview of one int64";

static int is_counter(PyObject *view) {
  const Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
  return buffer->len == sizeof(int64_t) && !buffer->readonly;
}

static void count_one(PyObject *counter) { ++*(int64_t *)PyMemoryView_GET_BUFFER(counter)->buf; }

/* ---- Plan: one signature's kernel ---- */

typedef struct {
  PyObject_HEAD
  Launch launch;
  int inputs, scalar_count, like, on_cuda, device, by_default_dtype;
  int launched;                 /* it has been, outside of a stream capture */
  int order[MAX_TENSORS];       /* of input i: its position among the call's tensors */
  int changes;                  /* the input that is changed in place and returned, or -1 */
  uint32_t may_overlap;         /* bit i: input i may share memory with that one */
  double scalars[MAX_SCALARS];
  int64_t shape[MAX_TENSORS], stride[MAX_TENSORS]; /* of the output, without `like` */
  int ndim, dtype;              /* dtype: torch's number of it */
  PyObject *prototype;          /* without `like`: the output is made like this tensor ... */
  PyObject *allocate;           /* ... or by this function */
  PyObject *counter;            /* memoryview of one int64 */
  PyObject *refused;            /* another: of calls that only the wish for a gradient keeps from the kernel */
  PyObject *fail;               /* called with the status when the launch failed; raises */
} Plan;

/* `fail` knows the call site, which knows the table, which knows the plan: the collector must see them all. */
static int plan_traverse(Plan *self, visitproc visit, void *arg) {
  Py_VISIT(self->prototype);
  Py_VISIT(self->allocate);
  Py_VISIT(self->fail);
  return 0;
}

static void plan_dealloc(Plan *self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(self->prototype);
  Py_XDECREF(self->allocate);
  Py_XDECREF(self->counter);
  Py_XDECREF(self->refused);
  Py_XDECREF(self->fail);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"launch", "order", "like", "prototype", "allocate", "scalars", "counter", "fail", "device",
                          "by_default_dtype", "changes", "may_overlap", "shape", "stride", "dtype", "refused", "launched", NULL};
  unsigned long long launch;
  PyObject *order, *prototype, *allocate, *scalars, *counter, *fail, *shape, *stride, *refused;
  int like, device, by_default_dtype, changes, dtype, launched;
  unsigned int may_overlap;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$KO!iOOO!O!OipiIO!O!iO!p", names, &launch, &PyTuple_Type, &order, &like, &prototype,
                                   &allocate, &PyTuple_Type, &scalars, &PyMemoryView_Type, &counter, &fail, &device,
                                   &by_default_dtype, &changes, &may_overlap, &PyTuple_Type, &shape, &PyTuple_Type, &stride,
                                   &dtype, &PyMemoryView_Type, &refused, &launched))
    return NULL;
  const Py_ssize_t inputs = PyTuple_GET_SIZE(order), count = PyTuple_GET_SIZE(scalars), ndim = PyTuple_GET_SIZE(shape);
  if (!is_counter(counter) || !is_counter(refused)) {
    PyErr_SetString(PyExc_TypeError, NOT_A_COUNTER);
    return NULL;
  }
  if (inputs < 1 || inputs > MAX_TENSORS || count > MAX_SCALARS || ndim > MAX_TENSORS ||
      PyTuple_GET_SIZE(stride) != ndim) {
    PyErr_SetString(PyExc_ValueError, "more tensors or scalars than a plan holds");
    return NULL;
  }
  Plan *self = (Plan *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->launch = (Launch)(uintptr_t)launch;
  self->inputs = (int)inputs, self->scalar_count = (int)count;
  self->like = like, self->on_cuda = device >= 0, self->device = device;
  self->by_default_dtype = by_default_dtype;
  self->changes = changes, self->may_overlap = may_overlap;
  self->ndim = (int)ndim, self->dtype = dtype, self->launched = launched;
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    self->shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
    self->stride[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(stride, i));
  }
  for (Py_ssize_t i = 0; i < inputs; ++i) self->order[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(order, i));
  for (Py_ssize_t i = 0; i < count; ++i) self->scalars[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(scalars, i));
  self->prototype = prototype == Py_None ? NULL : Py_NewRef(prototype);
  self->allocate = allocate == Py_None ? NULL : Py_NewRef(allocate);
  self->counter = Py_NewRef(counter), self->refused = Py_NewRef(refused), self->fail = Py_NewRef(fail);
  if (PyErr_Occurred()) Py_CLEAR(self);
  return (PyObject *)self;
}

static PyTypeObject PlanType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_call_table.Plan", .tp_basicsize = sizeof(Plan),
  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_new = plan_new, .tp_dealloc = (destructor)plan_dealloc,
  .tp_traverse = (traverseproc)plan_traverse,
};

/* ---- Call: the arguments as words ---- */

typedef struct {
  int64_t words[MAX_WORDS];     /* everything */
  int64_t rest[MAX_WORDS];      /* the same with tensors as mere places */
  PyObject *held[MAX_HELD];     /* owned: whose address is among the words */
  PyObject *tensors[MAX_TENSORS]; /* owned: a list that the caller gave may change as soon as any Python runs */
  DLTensor views[MAX_TENSORS];
  int count, rest_count, held_count, tensor_count;
} Call;

static int push(Call *call, int64_t word) {
  if (call->count >= MAX_WORDS) return 0;
  call->words[call->count++] = call->rest[call->rest_count++] = word;
  return 1;
}

static int push_object(Call *call, enum Tag tag, PyObject *object) {
  if (call->held_count >= MAX_HELD) return 0;
  call->held[call->held_count++] = Py_NewRef(object);
  return push(call, tag) && push(call, (int64_t)(intptr_t)object);
}

static int push_tensor(Call *call, PyObject *tensor) {
  if (call->tensor_count >= MAX_TENSORS) return 0;
  DLTensor *view = &call->views[call->tensor_count];
  if (torch.exchange->dltensor_from_py_object_no_sync(tensor, view)) {
    PyErr_Clear(); /* without memory of its own: sparse, or wrapped by a transform */
    return 0;
  }
  if (call->count + 3 + 2 * view->ndim > MAX_WORDS || call->rest_count >= MAX_WORDS) return 0;
  call->tensors[call->tensor_count++] = Py_NewRef(tensor);
  call->rest[call->rest_count++] = TENSOR;
  int64_t *word = call->words + call->count;
  *word++ = TENSOR | (int64_t)view->ndim << 8;
  *word++ = view->dtype.code | view->dtype.bits << 8 | view->dtype.lanes << 16;
  *word++ = (int64_t)view->device.device_type << 32 | (uint32_t)view->device.device_id;
  for (int axis = 0; axis < view->ndim; ++axis) *word++ = view->shape[axis];
  for (int axis = 0; axis < view->ndim; ++axis) *word++ = view->strides[axis];
  call->count = (int)(word - call->words);
  return 1;
}

static int push_value(Call *call, PyObject *value, int depth) {
  PyTypeObject *type = Py_TYPE(value);
  if ((PyObject *)type == torch.tensor || (PyObject *)type == torch.parameter) return push_tensor(call, value);
  if (type == &PyLong_Type) {
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && push(call, INTEGER) && push(call, number);
  }
  if (type == &PyFloat_Type) {
    const double number = PyFloat_AS_DOUBLE(value);
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return push(call, REAL) && push(call, bits);
  }
  if (value == Py_None || value == Py_Ellipsis || type == &PyBool_Type) return push_object(call, OBJECT, value);
  if (type == &PySlice_Type) {
    const PySliceObject *slice = (PySliceObject *)value;
    return depth < MAX_DEPTH && push(call, SLICE) && push_value(call, slice->start, depth + 1) &&
           push_value(call, slice->stop, depth + 1) && push_value(call, slice->step, depth + 1);
  }
  if (PySet_Contains(torch.sequences, (PyObject *)type) == 1) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    if (depth == MAX_DEPTH || !push(call, SEQUENCE | (int64_t)size << 8) || !push_object(call, OBJECT, (PyObject *)type))
      return 0;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!push_value(call, PySequence_Fast_GET_ITEM(value, i), depth + 1)) return 0;
    return 1;
  }
  return PySet_Contains(torch.constants, (PyObject *)type) == 1 && push_object(call, OBJECT, value);
}

/* A call's arguments as the interpreter passes them. */
typedef struct {
  PyObject *const *values;      /* by position, then by name */
  Py_ssize_t count;             /* by position */
  PyObject *names;              /* tuple of str, or NULL */
} Given;

/* To be called when a call that was read, also one that could not be, is done with. */
static void release(Call *call) {
  for (int i = 0; i < call->tensor_count; ++i) Py_DECREF(call->tensors[i]);
  for (int i = 0; i < call->held_count; ++i) Py_DECREF(call->held[i]);
}

/* Whether a call could be put into words; if not, no exception is set. */
static int read_given(Call *call, const Given *given) {
  call->count = call->rest_count = call->held_count = call->tensor_count = 0;
  int done = 1;
  for (Py_ssize_t i = 0; done && i < given->count; ++i) done = push_value(call, given->values[i], 0);
  const Py_ssize_t named = given->names ? PyTuple_GET_SIZE(given->names) : 0;
  for (Py_ssize_t i = 0; done && i < named; ++i)
    done = push_object(call, KEYWORD, PyTuple_GET_ITEM(given->names, i)) && push_value(call, given->values[given->count + i], 0);
  if (!done) PyErr_Clear(); /* a type that cannot be hashed, say */
  return done;
}

/* The same of arguments in a tuple and a dict. */
static int read_call(Call *call, PyObject *args, PyObject *kwargs) {
  const Given given = {PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args), NULL};
  int done = read_given(call, &given);
  Py_ssize_t position = 0;
  PyObject *name, *value;
  while (done && PyDict_Next(kwargs, &position, &name, &value))
    done = push_object(call, KEYWORD, name) && push_value(call, value, 0);
  if (!done) PyErr_Clear();
  return done;
}

/* ---- Table ---- */

typedef struct {
  uint64_t hash;
  int64_t *words;
  int count, held_count, wrong; /* wrong: how often the plan, only expected to fit, was refused */
  PyObject **held;
  Plan *plan;                   /* NULL: eager runs, and `counter` counts it */
  PyObject *counter;            /* of a ledger: the `Tally` */
} Entry;

typedef struct {
  Entry *entries;
  size_t capacity, used;
} Map;

typedef struct {
  PyObject_HEAD
  Map exact, expected;          /* by all words; by those that describe no tensor */
  char active, by_autocast;     /* by_autocast: autocast is part of the signature; else its being on means: not here */
  PyObject *state;              /* tuple of (function, its arguments): answers that are part of the signature, or NULL */
  PyObject *original;           /* what the call site stands for; NULL: whoever asks makes the call */
  char calls_others;            /* the original is a Python function of torch: it calls other call sites */
  PyObject *package;            /* whose call site it is: compared by identity */
  PyObject *operators;          /* frozenset of the names of the operators that a call may mean; set with `original` */
} Table;

static uint64_t hash_of(const int64_t *words, int count) {
  uint64_t even = (uint64_t)count, odd = 0; /* each step waits for the one before: two chains take half the time */
  for (int i = 0; i < count; i += 2) {
    even = (even ^ (uint64_t)words[i]) * 0x9E3779B97F4A7C15u;
    even ^= even >> 29;
    odd = (odd ^ (uint64_t)(i + 1 < count ? words[i + 1] : 0)) * 0xD6E8FEB86659FD93u;
    odd ^= odd >> 32;
  }
  return (even ^ odd) | 1; /* 0 marks a free place */
}

static Entry *find(const Map *map, const int64_t *words, int count) {
  if (!map->used) return NULL;
  const uint64_t hash = hash_of(words, count);
  for (size_t place = hash & (map->capacity - 1);; place = (place + 1) & (map->capacity - 1)) {
    Entry *entry = &map->entries[place];
    if (!entry->hash) return NULL;
    if (entry->hash == hash && entry->count == count && !memcmp(entry->words, words, (size_t)count * sizeof *words))
      return entry;
  }
}

static void map_clear(Map *map) {
  Map old = *map; /* releasing objects may run Python code that comes back here */
  *map = (Map){0};
  for (size_t place = 0; place < old.capacity; ++place) {
    Entry *entry = &old.entries[place];
    if (!entry->hash) continue;
    for (int i = 0; i < entry->held_count; ++i) Py_DECREF(entry->held[i]);
    Py_XDECREF(entry->plan);
    Py_XDECREF(entry->counter);
    PyMem_Free(entry->words);
    PyMem_Free(entry->held);
  }
  PyMem_Free(old.entries);
}

static int grow(Map *map) {
  const size_t capacity = map->capacity ? 2 * map->capacity : 64;
  Entry *entries = PyMem_Calloc(capacity, sizeof *entries);
  if (!entries) return 0;
  for (size_t i = 0; i < map->capacity; ++i) {
    if (!map->entries[i].hash) continue;
    size_t place = map->entries[i].hash & (capacity - 1);
    while (entries[place].hash) place = (place + 1) & (capacity - 1);
    entries[place] = map->entries[i];
  }
  PyMem_Free(map->entries);
  map->entries = entries, map->capacity = capacity;
  return 1;
}

/* A new entry for words that are not in the map yet. It holds the objects whose addresses are among the words, so that
 * no other object can get one of these addresses. Raises MemoryError. */
static Entry *add(Map *map, const Call *call, const int64_t *words, int count) {
  if (map->used >= MAX_ENTRIES) map_clear(map);
  if (2 * map->used >= map->capacity && !grow(map)) return (Entry *)PyErr_NoMemory();
  int64_t *copy = PyMem_Malloc((size_t)count * sizeof *words);
  PyObject **held = PyMem_Malloc((size_t)(call->held_count + 1) * sizeof *held);
  if (!copy || !held) {
    PyMem_Free(copy);
    PyMem_Free(held);
    return (Entry *)PyErr_NoMemory();
  }
  memcpy(copy, words, (size_t)count * sizeof *words);
  for (int i = 0; i < call->held_count; ++i) held[i] = Py_NewRef(call->held[i]);
  const uint64_t hash = hash_of(words, count);
  size_t place = hash & (map->capacity - 1);
  while (map->entries[place].hash) place = (place + 1) & (map->capacity - 1);
  map->used++;
  map->entries[place] = (Entry){.hash = hash, .words = copy, .count = count, .held = held, .held_count = call->held_count};
  return &map->entries[place];
}

/* ---- The call ---- */

/* A call without arguments. Functions that take none are entered directly: there are half a dozen in each call. */
static PyObject *ask(PyObject *function) {
  if (PyCFunction_CheckExact(function) && PyCFunction_GET_FLAGS(function) == METH_NOARGS)
    return PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), NULL);
  return PyObject_CallNoArgs(function);
}

/* How many modes see functions of torch; -1: an exception is set. */
static int64_t function_modes(void) {
  if (torch.count_function_modes) return torch.count_function_modes();
  PyObject *answer = ask(torch.function_modes);
  const int64_t count = answer ? PyLong_AsLongLong(answer) : -1;
  Py_XDECREF(answer);
  return count;
}

/* Add the state of autocast to a call's words. 1: done; 0: no room; -1: an exception is set. */
static int push_autocast(Call *call) {
  PyObject *on = ask(torch.autocast);
  if (!on) return -1;
  Py_DECREF(on);
  if (on == Py_False) return push(call, 0);
  PyObject *state = PyObject_CallNoArgs(torch.autocast_state);
  if (!state) return -1;
  int done = PyTuple_Check(state);
  for (Py_ssize_t i = 0; done && i < PyTuple_GET_SIZE(state); ++i)
    done = push_object(call, OBJECT, PyTuple_GET_ITEM(state, i)); /* dtypes live as long as torch does */
  Py_DECREF(state);
  return done;
}

/* Add torch's answers to the table's questions. As `push_autocast`. An answer is None, a truth value, two of them, or a
 * word of at most eight letters. */
static int push_state(Call *call, const Table *table) {
  if (!table->state) return 1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(table->state); ++i) {
    PyObject *question = PyTuple_GET_ITEM(table->state, i), *args = PyTuple_GET_ITEM(question, 1);
    PyObject *answer = PyTuple_GET_SIZE(args) ? PyObject_CallObject(PyTuple_GET_ITEM(question, 0), args)
                                              : ask(PyTuple_GET_ITEM(question, 0));
    if (!answer) return -1;
    int64_t word = answer == Py_True ? 1 : answer == Py_False ? 2 : answer == Py_None ? 3 : 0;
    if (PyTuple_Check(answer)) {
      for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(answer); ++at)
        word = word << 2 | (PyTuple_GET_ITEM(answer, at) == Py_True ? 1 : 2);
      word = word << 2 | 3;
    } else if (PyUnicode_Check(answer)) {
      Py_ssize_t size;
      const char *text = PyUnicode_AsUTF8AndSize(answer, &size);
      if (text && size <= (Py_ssize_t)sizeof word) memcpy(&word, text, (size_t)size);
    }
    Py_DECREF(answer);
    if (!word) return PyErr_Occurred() ? -1 : 0;
    if (!push(call, word)) return 0;
  }
  return 1;
}

/* All that belongs to a signature beside the arguments. */
static int push_surroundings(Call *call, const Table *table) {
  const int done = table->by_autocast ? push_autocast(call) : 1;
  return done == 1 ? push_state(call, table) : done;
}

enum { GRAD = 2 };

/* 1: nothing in the present state of torch forbids a kernel; 0: something does; GRAD: only that a gradient is wanted;
 * -1: an exception is set. */
static int state_allows(const Plan *plan, const Call *call, int by_autocast) {
  PyObject *cast = by_autocast ? Py_NewRef(Py_False) : ask(torch.autocast);
  if (!cast) return -1;
  Py_DECREF(cast);
  if (cast != Py_False) return 0;
  const int64_t modes = function_modes();
  if (modes) return modes < 0 ? -1 : 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.none_of); ++i) {
    PyObject *answer = ask(PyTuple_GET_ITEM(torch.none_of, i));
    if (!answer) return -1;
    const int yes = answer == Py_False ? 0 : answer == Py_True ? 1 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (yes) return yes < 0 ? -1 : 0;
  }
  PyObject *level = PyDict_GetItemWithError(torch.forward_ad, torch.current_level);
  if (!level || !PyLong_Check(level) || PyLong_AsLong(level) >= 0) return PyErr_Occurred() ? -1 : 0;
  if (plan->by_default_dtype) {
    PyObject *dtype = ask(torch.default_dtype);
    if (!dtype) return -1;
    Py_DECREF(dtype);
    if (dtype != torch.float32) return 0;
  }
  PyObject *enabled = ask(torch.grad_enabled);
  if (!enabled) return -1;
  Py_DECREF(enabled);
  for (int i = 0; enabled != Py_False && i < call->tensor_count; ++i) {
    PyObject *needed = PyObject_GetAttr(call->tensors[i], torch.requires_grad);
    if (!needed) return -1;
    Py_DECREF(needed);
    if (needed != Py_False) return GRAD;
  }
  for (int i = 0; i < call->tensor_count; ++i) {
    PyObject *negative = PyObject_CallOneArg(torch.is_neg, call->tensors[i]);
    if (!negative) return -1;
    Py_DECREF(negative);
    if (negative != Py_False) return 0;
  }
  return 1;
}

/* 1: the input that is changed may be, 0: it may not, -1: an exception is set. */
static int may_change(const Plan *plan, const Call *call) {
  uintptr_t first[MAX_TENSORS], last[MAX_TENSORS];
  for (int i = 0; i < plan->inputs; ++i) {
    const DLTensor *view = &call->views[plan->order[i]];
    int64_t reach = 1;
    for (int axis = 0; axis < view->ndim; ++axis) {
      if (!view->shape[axis]) reach = 0;
      else if (reach) reach += (view->shape[axis] - 1) * view->strides[axis];
    }
    first[i] = (uintptr_t)view->data + view->byte_offset;
    last[i] = first[i] + (uintptr_t)reach * ((uintptr_t)view->dtype.bits * view->dtype.lanes / 8);
  }
  const int target = plan->changes;
  for (int i = 0; i < plan->inputs; ++i)
    if (i != target && !(plan->may_overlap >> i & 1) && first[i] < last[target] && first[target] < last[i]) return 0;
  PyObject *inference = PyObject_CallOneArg(torch.is_inference, call->tensors[plan->order[target]]);
  PyObject *mode = inference ? ask(torch.inference_mode) : NULL;
  Py_XDECREF(inference);
  Py_XDECREF(mode);
  return mode ? inference == Py_False || mode == Py_True : -1;
}

/* What autograd is told after a change in place. 1: told; 0: an exception is set. */
static int note_change(PyObject *tensor) {
  PyObject *inference = PyObject_CallOneArg(torch.is_inference, tensor);
  Py_XDECREF(inference);
  if (!inference || inference == Py_True) return inference != NULL; /* such a tensor has no version */
  PyObject *tensors = PyTuple_Pack(1, tensor);
  PyObject *done = tensors ? PyObject_CallOneArg(torch.increment_version, tensors) : NULL;
  Py_XDECREF(tensors);
  Py_XDECREF(done);
  return done != NULL;
}

static PyObject *allocate(const Plan *plan, const Call *call) {
  const DLTensor *like = plan->like >= 0 ? &call->views[plan->like] : NULL;
  void *tensor = NULL;
  if (torch.empty_strided && plan->dtype >= 0 &&
      !torch.empty_strided(like ? like->ndim : plan->ndim, like ? like->shape : plan->shape,
                           like ? like->strides : plan->stride, plan->dtype, plan->on_cuda, plan->on_cuda ? plan->device : -1,
                           &tensor)) {
    PyObject *output = torch.wrap(tensor);
    torch.delete_tensor(tensor);
    return output;
  }
  /* torch's own way, which also raises the right exception when memory is short. */
  if (plan->allocate) return PyObject_CallNoArgs(plan->allocate);
  return PyObject_CallOneArg(torch.empty_like, plan->prototype ? plan->prototype : call->tensors[plan->like]);
}

/* The result; or NULL with *status telling why not: 0 an exception is set, else the status of the launch. */
static PyObject *launch(const Plan *plan, Call *call, int64_t *status) {
  *status = 0;
  DLTensor made = {0};
  const int in_place = plan->changes >= 0;
  PyObject *output = in_place ? Py_NewRef(call->tensors[plan->order[plan->changes]]) : allocate(plan, call);
  if (!output || (!in_place && torch.exchange->dltensor_from_py_object_no_sync(output, &made))) {
    Py_XDECREF(output);
    return NULL;
  }
  void *stream = NULL;
  if (plan->on_cuda && torch.exchange->current_work_stream(kDLCUDA, plan->device, &stream)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch does not tell its current stream");
    Py_DECREF(output);
    return NULL;
  }
  TVMFFIAny args[MAX_TENSORS + 1 + MAX_SCALARS + 2] = {{0}}, result = {0};
  int count = 0;
  for (int i = 0; i < plan->inputs; ++i)
    args[count++] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &call->views[plan->order[i]]};
  if (!in_place) args[count++] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &made};
  for (int i = 0; i < plan->scalar_count; ++i)
    args[count++] = (TVMFFIAny){.type_index = kTVMFFIFloat, .v_float64 = plan->scalars[i]};
  args[count++] = (TVMFFIAny){.type_index = kTVMFFIInt}; /* no workspace */
  args[count++] = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)(intptr_t)stream};
  int64_t elements = 1;
  for (int axis = 0; axis < made.ndim; ++axis) elements *= made.shape[axis];
  for (int i = 0; i < call->tensor_count; ++i) {
    int64_t own = 1;
    for (int axis = 0; axis < call->views[i].ndim; ++axis) own *= call->views[i].shape[axis];
    if (own > elements) elements = own;
  }
  PyThreadState *released = plan->on_cuda || elements >= LONG_ELEMENTS ? PyEval_SaveThread() : NULL;
  plan->launch(NULL, args, count, &result);
  if (released) PyEval_RestoreThread(released);
  if (result.v_int64 == 0 && (!in_place || note_change(output))) {
    count_one(plan->counter);
    return output;
  }
  Py_DECREF(output);
  *status = result.v_int64;
  return NULL;
}

/* The original calls that this thread is in the middle of. A Python function of torch calls other call sites of the same
 * operator: they must neither count the call again nor look at it again. On the heap, and counted: greenlets move the C
 * stack away, and end their calls in any order. */
typedef struct Busy {
  const Table *table;           /* NULL: this call has ended */
  struct Busy *outer;
  int holders;                  /* the frame that makes the call, and `busy` or the next inner one */
} Busy;
static __thread Busy *busy;
static long busy_calls;         /* in all threads: while it is 0 nobody has to ask for the thread's own */
static Busy *spare;             /* one that can be used again */

static void drop(Busy *call) {
  while (call && !--call->holders) {
    Busy *outer = call->outer;
    if (spare) PyMem_Free(call);
    else spare = call;
    call = outer;
  }
}

/* Whether an original of the same package and operator is running in this thread; -1: an exception is set. */
static int within_original(const Table *self) {
  for (const Busy *at = busy; at; at = at->outer) {
    if (!at->table || at->table->package != self->package) continue;
    if (at->table->operators == self->operators) return 1;
    PyObject *shared = PyNumber_And(at->table->operators, self->operators);
    const int some = shared ? PySet_GET_SIZE(shared) > 0 : -1;
    Py_XDECREF(shared);
    if (some) return some;
  }
  return 0;
}

static PyObject *call_within(const Table *self, PyObject *function, const Given *given) {
  Busy *here = spare ? spare : PyMem_Malloc(sizeof *here);
  if (!here) return PyErr_NoMemory();
  spare = NULL;
  *here = (Busy){self, busy, 2};
  busy = here;
  busy_calls++;
  PyObject *result = PyObject_Vectorcall(function, given->values, (size_t)given->count, given->names);
  busy_calls--;
  here->table = NULL;
  while (busy && !busy->table) {
    Busy *ended = busy;
    if ((busy = ended->outer)) busy->holders++;
    drop(ended);
  }
  drop(here);
  return result;
}

static PyObject *call_original(const Table *self, const Given *given) {
  if (self->calls_others) return call_within(self, self->original, given);
  return PyObject_Vectorcall(self->original, given->values, (size_t)given->count, given->names);
}

/* Whether a plan may be launched that was not yet, for such a call: nothing is launched for the first time while a stream
 * is captured. As `push_autocast`. */
static int may_launch_first(const Plan *plan, const Call *call) {
  if (!plan->on_cuda) return 1;
  for (int i = 0; i < call->tensor_count; ++i) /* another device may be of another kind, which no binary can know */
    if (call->views[i].device.device_id != plan->device) return 0;
  PyObject *capturing = ask(torch.capturing);
  Py_XDECREF(capturing);
  return capturing ? capturing == Py_False : -1;
}

/* Keep a plan that fitted, so that a capture finds its signature among those that have run. 0: an exception is set. */
static int settle(Table *self, const Call *call, Plan *plan) {
  if (!plan->on_cuda || find(&self->exact, call->words, call->count)) return 1;
  Entry *entry = add(&self->exact, call, call->words, call->count);
  if (!entry) return 0;
  entry->plan = (Plan *)Py_NewRef(plan);
  entry->counter = Py_NewRef(plan->counter);
  return 1;
}

/* fall_back(*args, **kwargs): the original call. */
static PyObject *table_fall_back(Table *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  if (self->original) return call_original(self, &(Given){args, count, names});
  PyErr_SetString(PyExc_TypeError, "fall_back of a table without an original");
  return NULL;
}

/* within(function, *args, **kwargs): a call of the function as a part of the original call. */
static PyObject *table_within(Table *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  if (count && self->original) return call_within(self, args[0], &(Given){args + 1, count - 1, names});
  PyErr_SetString(PyExc_TypeError, "within(function, *args, **kwargs) of a table with an original");
  return NULL;
}

/* What `serve` does with a call that is in words. */
static PyObject *serve_read(Table *self, const Given *given, Call *call) {
  const int described = push_surroundings(call, self);
  if (described != 1) return described ? NULL : Py_NewRef(unknown);
  const Entry *entry = find(&self->exact, call->words, call->count);
  if (entry && !entry->plan) {
    if (!self->original) return Py_NewRef(unknown);
    /* Of the function that it overrides a mode must be told in another way. */
    PyObject *counter = Py_NewRef(entry->counter);
    const int64_t modes = function_modes();
    if (!modes) count_one(counter);
    Py_DECREF(counter);
    if (modes) return modes < 0 ? NULL : Py_NewRef(unknown);
    return call_original(self, given);
  }
  const int guessed = !entry;
  if (guessed) entry = find(&self->expected, call->rest, call->rest_count);
  if (!entry || !entry->plan) return Py_NewRef(unknown);
  Plan *plan = (Plan *)Py_NewRef(entry->plan); /* the table may change as soon as any Python runs */
  int allowed = guessed || !plan->launched ? may_launch_first(plan, call) : 1;
  if (allowed == 1) allowed = state_allows(plan, call, self->by_autocast);
  if (allowed == 1 && plan->changes >= 0) allowed = may_change(plan, call);
  int64_t status = 0;
  PyObject *result = allowed == 1 ? launch(plan, call, &status) : NULL;
  if (allowed == GRAD && !guessed && self->original) {
    count_one(plan->refused);
    result = call_original(self, given);
  } else if (allowed == 0 || allowed == GRAD) {
    result = Py_NewRef(unknown);
  } else if (result) {
    plan->launched = 1;
    if (guessed && !settle(self, call, plan)) Py_CLEAR(result);
  } else if (status < 0) {
    PyObject *nothing = PyObject_CallFunction(plan->fail, "L", (long long)status);
    Py_XDECREF(nothing);
    if (nothing) PyErr_SetString(PyExc_SystemError, "a failed launch raised nothing");
  } else if (status > 0) {
    Entry *wrong = guessed ? find(&self->expected, call->rest, call->rest_count) : NULL;
    if (wrong) {
      wrong->wrong++;
      Py_CLEAR(wrong->plan);
    }
    result = Py_NewRef(unknown);
  }
  Py_DECREF(plan);
  return result;
}

/* The result of a call, or `unknown`; a new reference. */
static PyObject *serve(Table *self, const Given *given) {
  if (busy_calls && busy && self->original) {
    const int within = within_original(self);
    if (within) return within < 0 ? NULL : call_original(self, given);
  }
  if (!self->active) return Py_NewRef(unknown);
  Call call;
  PyObject *result = read_given(&call, given) ? serve_read(self, given, &call) : Py_NewRef(unknown);
  release(&call);
  return result;
}

static PyObject *table_attempt(Table *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return serve(self, &(Given){args, count, names});
}

/* remember(args, kwargs, plan or None, counter, portable): what the exact path found for such a call. */
static int remember(Table *self, Call *call, PyObject *plan, PyObject *counter, int portable) {
  const int described = push_surroundings(call, self);
  if (described != 1) return described;
  Entry *entry = find(&self->exact, call->words, call->count);
  if (!entry && !(entry = add(&self->exact, call, call->words, call->count))) return -1;
  Plan *former = entry->plan;
  PyObject *former_counter = entry->counter;
  entry->plan = plan == Py_None ? NULL : (Plan *)Py_NewRef(plan);
  entry->counter = Py_NewRef(counter);
  Py_XDECREF(former);
  Py_XDECREF(former_counter);
  if (portable && plan != Py_None) {
    entry = find(&self->expected, call->rest, call->rest_count);
    if (!entry && !(entry = add(&self->expected, call, call->rest, call->rest_count))) return -1;
    if (!entry->plan && entry->wrong < MAX_WRONG) entry->plan = (Plan *)Py_NewRef(plan);
  }
  return 1;
}

static PyObject *table_remember(Table *self, PyObject *args) {
  PyObject *values, *names, *plan, *counter;
  int portable;
  if (!PyArg_ParseTuple(args, "O!O!OO!p", &PyTuple_Type, &values, &PyDict_Type, &names, &plan, &PyMemoryView_Type, &counter,
                        &portable))
    return NULL;
  if (!self->active || (plan != Py_None && Py_TYPE(plan) != &PlanType)) Py_RETURN_FALSE;
  if (!is_counter(counter)) {
    PyErr_SetString(PyExc_TypeError, NOT_A_COUNTER);
    return NULL;
  }
  Call call;
  const int done = read_call(&call, values, names) ? remember(self, &call, plan, counter, portable) : 0;
  release(&call);
  return done < 0 ? NULL : PyBool_FromLong(done);
}

static int map_traverse(const Map *map, visitproc visit, void *arg) {
  for (size_t place = 0; place < map->capacity; ++place)
    if (map->entries[place].hash) Py_VISIT(map->entries[place].plan);
  return 0;
}

static int table_traverse(Table *self, visitproc visit, void *arg) {
  const int stop = map_traverse(&self->exact, visit, arg);
  if (stop) return stop;
  Py_VISIT(self->original);
  Py_VISIT(self->package);
  return map_traverse(&self->expected, visit, arg);
}

static int table_clear(Table *self) {
  map_clear(&self->exact);
  map_clear(&self->expected);
  Py_CLEAR(self->original);
  Py_CLEAR(self->package);
  return 0;
}

static void table_dealloc(Table *self) {
  PyObject_GC_UnTrack(self);
  table_clear(self);
  Py_XDECREF(self->state);
  Py_XDECREF(self->operators);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef table_methods[] = {
  {"attempt", (PyCFunction)(void (*)(void))table_attempt, METH_FASTCALL | METH_KEYWORDS, "a call's result, or UNKNOWN"},
  {"fall_back", (PyCFunction)(void (*)(void))table_fall_back, METH_FASTCALL | METH_KEYWORDS, "the original call"},
  {"within", (PyCFunction)(void (*)(void))table_within, METH_FASTCALL | METH_KEYWORDS, "within(function, *args, **kwargs): as a part of the original call"},
  {"remember", (PyCFunction)table_remember, METH_VARARGS, "remember(args, kwargs, plan, counter, portable): whether it could"},
  {NULL, NULL, 0, NULL},
};
static PyMemberDef table_members[] = {
  {"active", T_BOOL, offsetof(Table, active), 0, "false: every attempt answers UNKNOWN"},
  {"by_autocast", T_BOOL, offsetof(Table, by_autocast), 0, "autocast is part of the signature"},
  {"state", T_OBJECT, offsetof(Table, state), 0, "tuple of (function, arguments): answers that are part of the signature"},
  {"original", T_OBJECT, offsetof(Table, original), 0, "what the call site stands for"},
  {"calls_others", T_BOOL, offsetof(Table, calls_others), 0, "it is a Python function of torch"},
  {"package", T_OBJECT, offsetof(Table, package), 0, "whose call site it is"},
  {"operators", T_OBJECT, offsetof(Table, operators), 0, "frozenset of the names of the operators that a call may mean"},
  {NULL, 0, 0, 0, NULL},
};
static PyTypeObject TableType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_call_table.Table", .tp_basicsize = sizeof(Table),
  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_new = PyType_GenericNew, .tp_dealloc = (destructor)table_dealloc,
  .tp_traverse = (traverseproc)table_traverse, .tp_clear = (inquiry)table_clear,
  .tp_methods = table_methods, .tp_members = table_members,
};

/* ---- Function: what takes the place of a function or a method of torch ---- */

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  Table *table;
  PyObject *exact;              /* function(args: tuple, kwargs: dict): every call that the table does not know */
  PyObject *name;               /* "torch.Tensor.softmax": where it stands */
  PyObject *attributes, *weak;
} Function;

static PyObject *function_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
  Function *self = (Function *)callable;
  const Given given = {args, PyVectorcall_NARGS(flags), names};
  PyObject *result = serve(self->table, &given);
  if (result != unknown) return result;
  Py_DECREF(result);
  PyObject *values = PyTuple_New(given.count), *by_name = PyDict_New();
  for (Py_ssize_t i = 0; values && i < given.count; ++i) PyTuple_SET_ITEM(values, i, Py_NewRef(args[i]));
  for (Py_ssize_t i = 0; by_name && names && i < PyTuple_GET_SIZE(names); ++i)
    if (PyDict_SetItem(by_name, PyTuple_GET_ITEM(names, i), args[given.count + i])) Py_CLEAR(by_name);
  result = values && by_name ? PyObject_CallFunctionObjArgs(self->exact, values, by_name, NULL) : NULL;
  Py_XDECREF(values);
  Py_XDECREF(by_name);
  return result;
}

static PyObject *function_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
  return object ? PyMethod_New(self, object) : Py_NewRef(self);
}

static PyObject *function_repr(Function *self) {
  return PyUnicode_FromFormat("<kernelforge in place of %R>", self->table->original ? self->table->original : Py_None);
}

/* Pickled by the place where it stands: what is read is what stands there then. */
static PyObject *function_reduce(Function *self, PyObject *Py_UNUSED(protocol)) {
  PyObject *module = PyImport_ImportModule("pkgutil");
  PyObject *resolve = module ? PyObject_GetAttrString(module, "resolve_name") : NULL;
  Py_XDECREF(module);
  return resolve ? Py_BuildValue("N(O)", resolve, self->name) : NULL;
}

/* As of any function. */
static PyObject *function_copy(PyObject *self, PyObject *Py_UNUSED(ignored)) { return Py_NewRef(self); }

/* Of the kind that the original is, as far as `isinstance`, `inspect` and torch's compiler ask. */
static PyObject *function_class(Function *self, void *Py_UNUSED(closure)) {
  if (self->table->original) return PyObject_GetAttrString(self->table->original, "__class__");
  return Py_NewRef((PyObject *)Py_TYPE(self));
}

/* What it has not itself, the original has: code, defaults, text of a signature. */
static PyObject *function_attribute(PyObject *object, PyObject *name) {
  PyObject *found = PyObject_GenericGetAttr(object, name), *original = ((Function *)object)->table->original;
  if (found || !original || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return PyObject_GetAttr(original, name);
}

static int function_traverse(Function *self, visitproc visit, void *arg) {
  Py_VISIT(self->table);
  Py_VISIT(self->exact);
  Py_VISIT(self->attributes);
  return 0;
}

static int function_clear(Function *self) { /* it can still be called: the table breaks all other cycles */
  Py_CLEAR(self->attributes);
  return 0;
}

static void function_dealloc(Function *self) {
  PyObject_GC_UnTrack(self);
  if (self->weak) PyObject_ClearWeakRefs((PyObject *)self);
  function_clear(self);
  Py_DECREF(self->exact);
  Py_DECREF(self->name);
  Py_DECREF(self->table);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef function_methods[] = {
  {"__reduce_ex__", (PyCFunction)function_reduce, METH_O, NULL},
  {"__copy__", function_copy, METH_NOARGS, NULL},
  {"__deepcopy__", function_copy, METH_O, NULL},
  {NULL, NULL, 0, NULL},
};
static PyGetSetDef function_attributes[] = {
  {"__class__", (getter)function_class, NULL, NULL, NULL},
  {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
  {NULL, NULL, NULL, NULL, NULL},
};
static PyTypeObject FunctionType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_call_table.Function", .tp_basicsize = sizeof(Function),
  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
  .tp_dealloc = (destructor)function_dealloc, .tp_traverse = (traverseproc)function_traverse,
  .tp_clear = (inquiry)function_clear, .tp_repr = (reprfunc)function_repr, .tp_call = PyVectorcall_Call,
  .tp_getattro = function_attribute,
  .tp_vectorcall_offset = offsetof(Function, call), .tp_methods = function_methods, .tp_getset = function_attributes,
  .tp_dictoffset = offsetof(Function, attributes), .tp_weaklistoffset = offsetof(Function, weak),
};
/* In place of what becomes a method as an attribute of a class: Python functions and methods, but no builtin. */
static PyTypeObject MethodType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_call_table.Method", .tp_basicsize = sizeof(Function),
  .tp_base = &FunctionType, .tp_descr_get = function_get,
  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
  .tp_dealloc = (destructor)function_dealloc, .tp_traverse = (traverseproc)function_traverse,
  .tp_clear = (inquiry)function_clear, .tp_call = PyVectorcall_Call, .tp_vectorcall_offset = offsetof(Function, call),
};

/* stand_in(table, exact, name, binds) */
static PyObject *stand_in(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *table, *exact, *name;
  int binds;
  if (!PyArg_ParseTuple(args, "O!OUp", &TableType, &table, &exact, &name, &binds)) return NULL;
  PyTypeObject *type = binds ? &MethodType : &FunctionType;
  Function *self = (Function *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->call = function_call, self->table = (Table *)Py_NewRef(table);
  self->exact = Py_NewRef(exact), self->name = Py_NewRef(name);
  return (PyObject *)self;
}

/* ---- Ledger: calls counted and timed ---- */

typedef struct {
  PyObject_HEAD
  long long calls;
  double seconds;
} Tally;

static PyMemberDef tally_members[] = {
  {"calls", T_LONGLONG, offsetof(Tally, calls), 0, NULL},
  {"seconds", T_DOUBLE, offsetof(Tally, seconds), 0, NULL},
  {NULL, 0, 0, 0, NULL},
};
static PyTypeObject TallyType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_call_table.Tally", .tp_basicsize = sizeof(Tally),
  .tp_flags = Py_TPFLAGS_DEFAULT, .tp_new = PyType_GenericNew, .tp_members = tally_members,
};

typedef struct {
  PyObject_HEAD
  Map map;
  long long calls;
  double own_seconds;           /* spent here, the calls themselves excluded */
} Ledger;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The words of a call as a capture tells calls apart: dispatch's, and the function, grad mode, requires_grad, alignment
 * and which tensors begin at one address. 1: done; 0: not to be had; -1: an exception is set. */
static int read_observed(Call *call, PyObject *function, PyObject *args, PyObject *kwargs) {
  if (!read_call(call, args, kwargs)) return 0;
  PyObject *cast = ask(torch.autocast), *grad = cast ? ask(torch.grad_enabled) : NULL;
  Py_XDECREF(cast);
  Py_XDECREF(grad); /* True and False live on */
  if (!grad) return -1;
  if (cast != Py_False || !push_object(call, OBJECT, function) || !push_object(call, OBJECT, grad)) return 0;
  for (int i = 0; i < call->tensor_count; ++i) {
    PyObject *negative = PyObject_CallOneArg(torch.is_neg, call->tensors[i]);
    PyObject *needed = negative ? PyObject_GetAttr(call->tensors[i], torch.requires_grad) : NULL;
    Py_XDECREF(negative);
    Py_XDECREF(needed);
    if (!needed) return -1;
    const DLTensor *view = &call->views[i];
    if (negative != Py_False || view->dtype.code == kDLComplex) return 0;
    const uintptr_t address = (uintptr_t)view->data + view->byte_offset;
    int64_t first = i;
    for (int other = i - 1; other >= 0; --other)
      if ((uintptr_t)call->views[other].data + call->views[other].byte_offset == address) first = other;
    if (!push(call, (int64_t)(address & -address & 15) | (needed == Py_True) << 4 | first << 8)) return 0;
  }
  return 1;
}

static PyObject *ledger_attempt(Ledger *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 3 || !PyTuple_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
    PyErr_SetString(PyExc_TypeError, "attempt(function, args: tuple, kwargs: dict)");
    return NULL;
  }
  const double entered = now();
  Call call;
  const int read = read_observed(&call, args[0], args[1], args[2]);
  const Entry *entry = read == 1 ? find(&self->map, call.words, call.count) : NULL;
  Tally *tally = entry ? (Tally *)Py_NewRef(entry->counter) : NULL;
  release(&call);
  if (read < 0) return NULL;
  if (!tally) {
    self->own_seconds += now() - entered;
    return Py_NewRef(unknown);
  }
  self->calls++;
  const double began = now();
  PyObject *result = PyObject_Call(args[0], args[1], args[2]);
  const double ended = now();
  tally->calls++;
  tally->seconds += ended - began;
  Py_DECREF(tally);
  self->own_seconds += now() - ended + began - entered;
  return result;
}

/* remember(function, args, kwargs, tally): from now on such calls are added to the tally here; whether it could. */
static PyObject *ledger_remember(Ledger *self, PyObject *args) {
  PyObject *function, *values, *names, *tally;
  if (!PyArg_ParseTuple(args, "OO!O!O!", &function, &PyTuple_Type, &values, &PyDict_Type, &names, &TallyType, &tally))
    return NULL;
  Call call;
  const int read = read_observed(&call, function, values, names);
  const int is_new = read == 1 && !find(&self->map, call.words, call.count);
  Entry *entry = is_new ? add(&self->map, &call, call.words, call.count) : NULL;
  if (entry) entry->counter = Py_NewRef(tally);
  release(&call);
  return read < 0 || (is_new && !entry) ? NULL : PyBool_FromLong(is_new);
}

static void ledger_dealloc(Ledger *self) {
  map_clear(&self->map);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef ledger_methods[] = {
  {"attempt", (PyCFunction)(void (*)(void))ledger_attempt, METH_FASTCALL, "attempt(function, args, kwargs): its result, or UNKNOWN"},
  {"remember", (PyCFunction)ledger_remember, METH_VARARGS, "remember(function, args, kwargs, tally): whether it could"},
  {NULL, NULL, 0, NULL},
};
static PyMemberDef ledger_members[] = {
  {"calls", T_LONGLONG, offsetof(Ledger, calls), 0, "made here"},
  {"own_seconds", T_DOUBLE, offsetof(Ledger, own_seconds), 0, "spent here, the calls themselves excluded"},
  {NULL, 0, 0, 0, NULL},
};
static PyTypeObject LedgerType = {
  PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kforge_call_table.Ledger", .tp_basicsize = sizeof(Ledger),
  .tp_flags = Py_TPFLAGS_DEFAULT, .tp_new = PyType_GenericNew, .tp_dealloc = (destructor)ledger_dealloc,
  .tp_methods = ledger_methods, .tp_members = ledger_members,
};

/* ---- Module ---- */

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
  static char *names[] = {"tensor", "parameter", "constants", "sequences", "none_of", "autocast_state", "grad_enabled", "autocast",
                          "default_dtype", "float32", "is_neg", "empty_like", "is_inference",
                          "inference_mode", "increment_version", "capturing", "function_modes", "forward_ad", "exchange",
                          "empty_strided", "delete_tensor", "wrap", "count_function_modes", NULL};
  PyObject *capsule;
  unsigned long long empty_strided, delete_tensor, wrap, count_function_modes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOO!O!O!OOOOOOOOOOOOO!OKKKK", names, &torch.tensor, &torch.parameter,
                                   &PyFrozenSet_Type, &torch.constants, &PyFrozenSet_Type, &torch.sequences, &PyTuple_Type,
                                   &torch.none_of, &torch.autocast_state, &torch.grad_enabled, &torch.autocast, &torch.default_dtype, &torch.float32, &torch.is_neg,
                                   &torch.empty_like, &torch.is_inference, &torch.inference_mode,
                                   &torch.increment_version, &torch.capturing, &torch.function_modes, &PyDict_Type, &torch.forward_ad, &capsule, &empty_strided,
                                   &delete_tensor, &wrap, &count_function_modes))
    return NULL;
  *(void **)&torch.count_function_modes = (void *)(uintptr_t)count_function_modes;
  if (empty_strided && delete_tensor && wrap) {
    *(void **)&torch.empty_strided = (void *)(uintptr_t)empty_strided;
    *(void **)&torch.delete_tensor = (void *)(uintptr_t)delete_tensor;
    *(void **)&torch.wrap = (void *)(uintptr_t)wrap;
  }
  torch.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!torch.exchange) return NULL;
  if (torch.exchange->header.version.major != DLPACK_MAJOR_VERSION || !torch.exchange->dltensor_from_py_object_no_sync ||
      !torch.exchange->current_work_stream) {
    PyErr_SetString(PyExc_ImportError, "torch speaks another version of the DLPack exchange API");
    return NULL;
  }
  torch.requires_grad = PyUnicode_InternFromString("requires_grad");
  torch.current_level = PyUnicode_InternFromString("_current_level");
  PyObject *kept[] = {torch.tensor, torch.parameter, torch.constants, torch.sequences, torch.none_of, torch.autocast_state, torch.grad_enabled,
                      torch.autocast, torch.default_dtype, torch.float32, torch.is_neg, torch.empty_like, torch.is_inference, torch.inference_mode,
                      torch.increment_version, torch.capturing, torch.function_modes, torch.forward_ad};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) Py_INCREF(kept[i]); /* for the life of the process */
  return PyBool_FromLong(torch.empty_strided != NULL);
}

/* A kernel that does nothing, to time what surrounds one. */
static int launch_nothing(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  (void)self, (void)args, (void)count;
  *result = (TVMFFIAny){.type_index = kTVMFFIInt};
  return 0;
}

static PyMethodDef functions[] = {
  {"stand_in", stand_in, METH_VARARGS, "stand_in(table, exact, name, binds): what takes a function's or method's place"},
  {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS, "what of torch is asked in every call; whether outputs are made through its C shim"},
  {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "kforge_call_table", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_kforge_call_table(void) {
  PyTypeObject *types[] = {&PlanType, &TableType, &FunctionType, &MethodType, &TallyType, &LedgerType};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    if (PyType_Ready(types[i]) < 0) return NULL;
  PyObject *module = PyModule_Create(&definition);
  unknown = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
  if (!module || !unknown || PyModule_AddObjectRef(module, "UNKNOWN", unknown) < 0) return NULL;
  PyObject *nothing = PyLong_FromVoidPtr((void *)(uintptr_t)launch_nothing);
  const int added = nothing ? PyModule_AddObjectRef(module, "NOTHING", nothing) : -1;
  Py_XDECREF(nothing);
  if (added < 0) return NULL;
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    if (PyModule_AddType(module, types[i]) < 0) return NULL;
  return module;
}
