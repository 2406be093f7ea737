/* gpumem_magic.recording.marks._native: what sys.monitoring calls at each event, without the interpreter.

   Between two operations of torch little is left in the processor's caches, and a callback in Python takes four times
   and more of what it takes in a loop, because its code, its variables and the interpreter's own work come from memory
   each time. The same in C touches a few cache lines. Nothing is here that is not also in Python (tape.py, calls.py),
   which does it where this module was not built, and everything that is not common is left to Python.

   An event is atomic: no signal's handler and no other thread comes in before it has returned, unless it calls Python. */

#include "native.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

/* Python compares it, so that a binary of other sources counts as none. */
#define INTERFACE 2

#define FIRST_ROOM 8192 /* 64 KiB */

int64_t
native_now(void)
{
#ifdef _WIN32
    FILETIME time;
    ULARGE_INTEGER since_1601; /* in steps of 100 ns */
#if PY_VERSION_HEX >= 0x030d0000
    GetSystemTimePreciseAsFileTime(&time);
#else
    GetSystemTimeAsFileTime(&time);
#endif
    since_1601.LowPart = time.dwLowDateTime;
    since_1601.HighPart = time.dwHighDateTime;
    return ((int64_t)since_1601.QuadPart - 116444736000000000LL) * 100;
#else
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
#endif
}

int
native_log_grow(Log *log)
{
    Py_ssize_t room = log->room ? 2 * log->room : FIRST_ROOM;
    int64_t *items = PyMem_RawRealloc(log->items, (size_t)room * sizeof(int64_t));
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    log->items = items;
    log->room = room;
    return 0;
}

PyObject *
native_log_copy(const Log *log)
{
    return PyBytes_FromStringAndSize((const char *)log->items, log->count * (Py_ssize_t)sizeof(int64_t));
}

PyObject *
native_log_take(Log *log)
{
    PyObject *taken = native_log_copy(log);
    if (taken != NULL) {
        log->count = 0;
    }
    return taken;
}

void
native_log_free(Log *log)
{
    PyMem_RawFree(log->items);
    log->items = NULL;
    log->count = log->room = 0;
}

PyObject *
native_by_identity(PyObject *dict, const void *object)
{
    PyObject *key = PyLong_FromVoidPtr((void *)object);
    if (key == NULL) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(dict, key);
    Py_DECREF(key);
    return found;
}

int
native_has_arguments(Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "an event of %zd arguments, not %zd", wanted, count);
        return 0;
    }
    return 1;
}

int
native_forgot_recursion(void)
{
    if (!PyErr_ExceptionMatches(PyExc_RecursionError)) {
        return 0;
    }
    PyErr_Clear();
    return 1;
}

PyObject *
native_slowly(PyObject *function, PyObject *code, PyObject *number)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame(); /* of the code: C has no frame of its own */
    if (frame == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *arguments[] = {code, number != NULL ? number : frame, frame};
    PyObject *result = PyObject_Vectorcall(function, arguments, number != NULL ? 3 : 2, NULL);
    if (result == NULL && native_forgot_recursion()) {
        Py_RETURN_NONE;
    }
    return result;
}

static int
add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}

static int
execute(PyObject *module)
{
    if (add_type(module, &native_tape_spec) < 0 || add_type(module, &native_watch_spec) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyMethodDef functions[] = {
    {"tracked", native_tracked, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gpumem_magic.recording.marks._native",
    .m_doc = "Callbacks for sys.monitoring; see the sources beside tape.py.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
