/* Writes down when torch's own calls begin and end, in any thread: call_log.py, event for event. */

#include "native.h"

typedef struct {
    unsigned long ident;
    PyObject *top; /* the innermost call under way: a Node */
    Log log;       /* time and the node's number, of each mark */
    Py_ssize_t dropped;
} Thread;

typedef struct {
    PyObject_HEAD
    Thread *threads;
    Py_ssize_t count, last; /* of the threads; the one that an event was of last */
    Py_ssize_t limit;       /* marks that all threads keep */
    PyTypeObject *node_type;
    Py_ssize_t number_at, below_at, code_at, kin_at; /* where a Node has its attributes */
    PyObject *root, *module_code, *watched, *looks;
    PyObject *slow_begin, *slow_end, *slow_unwind, *look;
    PyObject *self_name, *next_name;
} Watch;

/* An attribute in __slots__, borrowed; NULL where it was deleted. It is read where it lies, as the interpreter does. */
static inline PyObject *
slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

static int
find_slot(PyTypeObject *type, const char *name, Py_ssize_t *offset)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, name);
    if (descriptor == NULL) {
        return -1;
    }
    int is_slot = Py_IS_TYPE(descriptor, &PyMemberDescr_Type)
                  && ((PyMemberDescrObject *)descriptor)->d_member->type == Py_T_OBJECT_EX;
    if (is_slot) {
        *offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }
    else {
        PyErr_Format(PyExc_TypeError, "%s is in no __slots__", name);
    }
    Py_DECREF(descriptor);
    return is_slot ? 0 : -1;
}

static Thread *
find_thread(Watch *self, unsigned long ident)
{
    if (self->last < self->count && self->threads[self->last].ident == ident) {
        return &self->threads[self->last];
    }
    for (Py_ssize_t index = 0; index < self->count; index++) {
        if (self->threads[index].ident == ident) {
            self->last = index;
            return &self->threads[index];
        }
    }
    return NULL;
}

static Thread *
add_thread(Watch *self, unsigned long ident)
{
    Thread *threads = PyMem_RawRealloc(self->threads, (size_t)(self->count + 1) * sizeof(Thread));
    if (threads == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    self->threads = threads;
    Thread *thread = &threads[self->count];
    *thread = (Thread){.ident = ident, .top = Py_NewRef(self->root)};
    self->count++;
    return thread;
}

/* Keeps the newest marks. */
static void
trim(Thread *thread, Py_ssize_t kept)
{
    Log *log = &thread->log;
    Py_ssize_t marks = log->count / 2;
    if (marks > kept) {
        memmove(log->items, log->items + 2 * (marks - kept), (size_t)kept * 2 * sizeof(int64_t));
        thread->dropped += marks - kept;
        log->count = 2 * kept;
    }
}

/* Whether there is room for a mark, which only the first one may have to go without. */
static int
make_room(Watch *self, Thread *thread)
{
    Log *log = &thread->log;
    if (log->room - log->count < NATIVE_EVENT) {
        /* Half of them go at a time, so that moving the rest is paid once in as many marks. */
        Py_ssize_t kept = self->limit / self->count / 2;
        if (kept > 0 && log->count / 2 >= 2 * kept) {
            trim(thread, kept);
        }
        else if (native_log_grow(log) < 0) {
            PyErr_Clear();
            trim(thread, log->count / 4);
        }
    }
    return log->room - log->count >= NATIVE_EVENT;
}

/* Writes a mark, and is at the node from there on. */
static void
move_to(Watch *self, Thread *thread, PyObject *node, int64_t now)
{
    if (make_room(self, thread)) {
        native_log_add(&thread->log, now);
        native_log_add(&thread->log, PyLong_AsLong(slot(node, self->number_at)));
    }
    else {
        thread->dropped++;
    }
    /* Last, as it may run Python, in which another thread may come for the first time, which moves all threads. */
    Py_SETREF(thread->top, Py_NewRef(node));
}

/* The node of a call from `top`, borrowed; NULL where it is to be made, without an error. */
static PyObject *
known(Watch *self, PyObject *top, PyObject *code)
{
    PyObject *kin = slot(top, self->kin_at), *node = NULL;
    if (kin == NULL || !PyDict_CheckExact(kin)) {
        return NULL;
    }
    if (code == self->module_code) {
        PyFrameObject *frame = PyEval_GetFrame();
        PyObject *module = frame != NULL ? PyFrame_GetVar(frame, self->self_name) : NULL;
        if (module != NULL) {
            node = native_by_identity(kin, module);
            Py_DECREF(module);
        }
    }
    else {
        node = native_by_identity(kin, code);
    }
    if (node == NULL) {
        PyErr_Clear(); /* the method that is called in place of it meets it too */
        return NULL;
    }
    return Py_IS_TYPE(node, self->node_type) ? node : NULL;
}

/* Whether a look is due. Where that cannot be told it is, and fails where its failure becomes a note. */
static int
is_look_due(Watch *self, int64_t now)
{
    int never = 0; /* 1 for what is later than any clock tells */
    PyObject *next = PyObject_GetAttr(self->looks, self->next_name);
    long long next_ns = next != NULL ? PyLong_AsLongLongAndOverflow(next, &never) : -1;
    Py_XDECREF(next);
    if (next_ns == -1 && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return never <= 0 && now >= next_ns;
}

static PyObject *
begin(Watch *self, PyObject *const *arguments)
{
    PyObject *code = arguments[0];
    Thread *thread = find_thread(self, PyThread_get_thread_ident());
    PyObject *node = thread != NULL ? known(self, thread->top, code) : NULL;
    if (node == NULL) {
        return native_slowly(self->slow_begin, code, NULL);
    }
    int64_t now = native_now();
    /* Most calls are of inner modules, which have nothing to look at. */
    int is_inner = code == self->module_code && thread->top != self->root;
    move_to(self, thread, node, now);
    if (!is_inner && is_look_due(self, now)) {
        return native_slowly(self->look, code, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
end(Watch *self, PyObject *const *arguments)
{
    Thread *thread = find_thread(self, PyThread_get_thread_ident());
    if (thread != NULL && slot(thread->top, self->code_at) == arguments[0]) {
        PyObject *below = slot(thread->top, self->below_at);
        if (below != NULL && Py_IS_TYPE(below, self->node_type)) { /* only the root has none */
            move_to(self, thread, below, native_now());
            Py_RETURN_NONE;
        }
    }
    return native_slowly(self->slow_end, arguments[0], NULL);
}

static PyObject *
unwind(Watch *self, PyObject *const *arguments)
{
    /* A global event: mostly of somebody else's code. */
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(self->watched); index++) {
        if (PyTuple_GET_ITEM(self->watched, index) == arguments[0]) {
            return native_slowly(self->slow_unwind, arguments[0], NULL);
        }
    }
    Py_RETURN_NONE;
}

NATIVE_CALLBACK(Watch, begin, 2)
NATIVE_CALLBACK(Watch, end, 3)
NATIVE_CALLBACK(Watch, unwind, 3)

static PyObject *
top(Watch *self, PyObject *argument)
{
    unsigned long ident = PyLong_AsUnsignedLong(argument);
    if (ident == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    Thread *thread = find_thread(self, ident);
    return Py_NewRef(thread != NULL ? thread->top : Py_None);
}

static PyObject *
move(Watch *self, PyObject *arguments)
{
    unsigned long ident;
    PyObject *node;
    if (!PyArg_ParseTuple(arguments, "kO!:move", &ident, self->node_type, &node)) {
        return NULL;
    }
    Thread *thread = find_thread(self, ident);
    if (thread == NULL && (thread = add_thread(self, ident)) == NULL) {
        return NULL;
    }
    move_to(self, thread, node, native_now());
    Py_RETURN_NONE;
}

static PyObject *
logs(Watch *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t index = 0; list != NULL && index < self->count; index++) {
        Thread *thread = &self->threads[index];
        PyObject *entry = Py_BuildValue("(kNn)", thread->ident, native_log_copy(&thread->log), thread->dropped);
        if (entry == NULL || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *
make(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"root", "module_code", "watched", "looks", "begin", "end", "unwind", "look", "limit", NULL};
    PyObject *root, *module_code, *watched, *looks, *begin, *end, *unwind, *look;
    Py_ssize_t limit;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "OOO!OOOOOn:Watch", keywords, &root, &module_code, &PyTuple_Type,
                                     &watched, &looks, &begin, &end, &unwind, &look, &limit)) {
        return NULL;
    }
    Watch *self = (Watch *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->limit = limit;
    self->node_type = (PyTypeObject *)Py_NewRef(Py_TYPE(root));
    self->root = Py_NewRef(root);
    self->module_code = Py_NewRef(module_code);
    self->watched = Py_NewRef(watched);
    self->looks = Py_NewRef(looks);
    self->slow_begin = Py_NewRef(begin);
    self->slow_end = Py_NewRef(end);
    self->slow_unwind = Py_NewRef(unwind);
    self->look = Py_NewRef(look);
    self->self_name = PyUnicode_InternFromString("self");
    self->next_name = PyUnicode_InternFromString("next_ns");
    if (self->self_name == NULL || self->next_name == NULL || find_slot(self->node_type, "number", &self->number_at) < 0
        || find_slot(self->node_type, "below", &self->below_at) < 0
        || find_slot(self->node_type, "code", &self->code_at) < 0
        || find_slot(self->node_type, "kin", &self->kin_at) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
traverse(Watch *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t index = 0; index < self->count; index++) {
        Py_VISIT(self->threads[index].top);
    }
    Py_VISIT(self->node_type);
    Py_VISIT(self->root);
    Py_VISIT(self->module_code);
    Py_VISIT(self->watched);
    Py_VISIT(self->looks);
    Py_VISIT(self->slow_begin);
    Py_VISIT(self->slow_end);
    Py_VISIT(self->slow_unwind);
    Py_VISIT(self->look);
    return 0;
}

static int
clear(Watch *self)
{
    while (self->count > 0) {
        Thread *thread = &self->threads[--self->count];
        PyObject *node = thread->top;
        native_log_free(&thread->log);
        Py_DECREF(node);
    }
    Py_CLEAR(self->node_type);
    Py_CLEAR(self->root);
    Py_CLEAR(self->module_code);
    Py_CLEAR(self->watched);
    Py_CLEAR(self->looks);
    Py_CLEAR(self->slow_begin);
    Py_CLEAR(self->slow_end);
    Py_CLEAR(self->slow_unwind);
    Py_CLEAR(self->look);
    return 0;
}

static void
dealloc(Watch *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_CLEAR(self->self_name);
    Py_CLEAR(self->next_name);
    PyMem_RawFree(self->threads);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"on_begin", (PyCFunction)(void (*)(void))on_begin, METH_FASTCALL, NULL},
    {"on_end", (PyCFunction)(void (*)(void))on_end, METH_FASTCALL, NULL},
    {"on_unwind", (PyCFunction)(void (*)(void))on_unwind, METH_FASTCALL, NULL},
    {"top", (PyCFunction)top, METH_O, NULL},
    {"move", (PyCFunction)move, METH_VARARGS, NULL},
    {"logs", (PyCFunction)logs, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec native_watch_spec = {
    .name = "gpumem_magic.recording.marks._native.Watch",
    .basicsize = sizeof(Watch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
