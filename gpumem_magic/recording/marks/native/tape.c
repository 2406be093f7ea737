/* Writes down the events of the thread that runs the cell: tape.py, event for event. What each number means, and why
   so little is done, is told there. */

#include "native.h"

#define LEAVE 0
#define FIRST_NS 100000 /* until the pace is checked for the first time */
/* Or after so many numbers: a loop writes three times as many in that time as in Python. */
#define MOST_UNCHECKED 8192

typedef struct {
    PyObject_HEAD
    unsigned long own;      /* the thread */
    Log log;
    PyObject *current;      /* the innermost function's code; None: of another one; NULL: no event fits */
    PyObject **callers;     /* outermost first; None where events must be compared by frame */
    Py_ssize_t depth, depth_room;
    int64_t deadline;       /* when the pace is to be checked */
    Py_ssize_t seen;        /* of the log, when it was checked last */
    PyObject *codes, *numbers, *resumes, *files;
    PyObject *disable;
    PyObject *slow_line, *slow_start, *slow_resume, *slow_leave, *slow_unwind, *hear, *pause, *fail;
} Tape;

static inline int
fits(Tape *self, PyObject *code)
{
    return code == self->current && PyThread_get_thread_ident() == self->own;
}

static inline int
is_own(Tape *self)
{
    return self->current != NULL && PyThread_get_thread_ident() == self->own;
}

static int
enter(Tape *self, PyObject *code)
{
    if (self->depth == self->depth_room) {
        Py_ssize_t room = self->depth_room ? 2 * self->depth_room : 64;
        PyObject **callers = PyMem_RawRealloc(self->callers, (size_t)room * sizeof(PyObject *));
        if (callers == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->callers = callers;
        self->depth_room = room;
    }
    self->callers[self->depth++] = self->current;
    self->current = Py_NewRef(code);
    return 0;
}

static inline void
go_back(Tape *self)
{
    PyObject *code = self->current;
    self->current = self->callers[--self->depth];
    Py_DECREF(code);
}

static void
forget_stack(Tape *self)
{
    Py_CLEAR(self->current);
    while (self->depth > 0) {
        Py_DECREF(self->callers[--self->depth]);
    }
}

/* Hands the error that is set to `fail`, which lets through what is not ours. */
static int
failed(Tape *self)
{
    Py_CLEAR(self->current);
    if (native_forgot_recursion()) {
        return 0;
    }
    PyObject *error = PyErr_GetRaisedException();
    PyObject *result = PyObject_CallOneArg(self->fail, error);
    Py_DECREF(error);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
none_or_failed(Tape *self, int result)
{
    if (result < 0 && failed(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static inline int
is_check_due(Tape *self, int64_t now)
{
    return now >= self->deadline || self->log.count - self->seen >= MOST_UNCHECKED;
}

/* Returns 1 when events may be written on, 0 when not, -1 with an error that the cell must get. */
static int
check(Tape *self, int64_t now)
{
    PyObject *answer = PyObject_CallFunction(self->pause, "nL", (self->log.count - self->seen) / 2, (long long)now);
    long long pause = answer != NULL ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(answer);
    if (pause < 0 && PyErr_Occurred()) {
        return failed(self);
    }
    self->seen = self->log.count;
    self->deadline = now + pause;
    return pause > 0;
}

static PyObject *
line(Tape *self, PyObject *const *arguments)
{
    PyObject *code = arguments[0];
    if (fits(self, code)) {
        long number = PyLong_AsLong(arguments[1]);
        if (native_log_reserve(&self->log) < 0) {
            return none_or_failed(self, -1);
        }
        int64_t now = native_now();
        native_log_add(&self->log, now);
        native_log_add(&self->log, number);
        if (!is_check_due(self, now)) {
            Py_RETURN_NONE;
        }
        int goes_on = check(self, now);
        if (goes_on != 0) {
            return goes_on < 0 ? NULL : Py_NewRef(Py_None);
        }
    }
    return native_slowly(self->slow_line, code, arguments[1]);
}

/* In place of a code's number, which is below 0. */
enum { NOT_HEARD, ELSEWHERE, FAILED };

/* The number of code that is known; NOT_HEARD where it is not, or an error is set. */
static long
number_of(Tape *self, PyObject *code)
{
    PyObject *found = native_by_identity(self->numbers, code);
    return found != NULL ? PyLong_AsLong(found) : NOT_HEARD;
}

/* The line at an offset of code; 0 where it is not known, or an error is set. */
static long
line_at(Tape *self, PyObject *code, PyObject *offset)
{
    PyObject *key = Py_BuildValue("(NO)", PyLong_FromVoidPtr(code), offset);
    if (key == NULL) {
        return 0;
    }
    PyObject *found = PyDict_GetItemWithError(self->resumes, key);
    Py_DECREF(key);
    return found != NULL ? PyLong_AsLong(found) : 0;
}

/* Makes code known, and what line is at an offset, unless an error is set; returns its number, NOT_HEARD when it has none
   or no event fits, ELSEWHERE when it is a library's, FAILED with an error that the cell must get. */
static long
heard(Tape *self, PyObject *code, PyObject *offset)
{
    PyObject *is_mine = NULL, *answer = NULL;
    if (!PyErr_Occurred()) {
        is_mine = PyDict_GetItemWithError(self->files, ((PyCodeObject *)code)->co_filename);
    }
    if (is_mine == NULL && PyErr_Occurred()) {
        return failed(self) < 0 ? FAILED : NOT_HEARD;
    }
    if (is_mine == Py_False) {
        return ELSEWHERE;
    }
    if (!is_own(self)) {
        return NOT_HEARD;
    }
    answer = PyObject_CallFunctionObjArgs(self->hear, code, offset, NULL);
    if (answer == NULL) {
        return native_forgot_recursion() ? NOT_HEARD : FAILED;
    }
    long number = answer == Py_None ? NOT_HEARD : PyLong_AsLong(answer);
    Py_DECREF(answer);
    /* While it ran, another thread may have taken what is written. */
    return self->current != NULL ? number : NOT_HEARD;
}

static PyObject *
start(Tape *self, PyObject *const *arguments)
{
    PyObject *code = arguments[0];
    long number = is_own(self) ? number_of(self, code) : NOT_HEARD;
    if (number == NOT_HEARD) {
        number = heard(self, code, Py_None);
    }
    if (number == ELSEWHERE) {
        return Py_NewRef(self->disable); /* all of a library that runs comes by once in each cell */
    }
    if (number >= 0) {
        return number == FAILED ? NULL : native_slowly(self->slow_start, code, NULL);
    }
    if (native_log_reserve(&self->log) < 0 || enter(self, code) < 0) {
        return none_or_failed(self, -1);
    }
    native_log_add(&self->log, number);
    Py_RETURN_NONE;
}

static PyObject *
resume(Tape *self, PyObject *const *arguments)
{
    PyObject *code = arguments[0], *offset = arguments[1];
    int64_t now = native_now();
    long number = is_own(self) ? number_of(self, code) : NOT_HEARD;
    long at = number != NOT_HEARD ? line_at(self, code, offset) : 0;
    if (at == 0) {
        number = heard(self, code, offset);
        at = number < 0 ? line_at(self, code, offset) : 0;
        if (at == 0 && number < 0) {
            number = PyErr_Occurred() && failed(self) < 0 ? FAILED : NOT_HEARD;
        }
    }
    /* Here too: a generator that goes on in the middle of a line, again and again, meets no line. */
    else if (is_check_due(self, now)) {
        int goes_on = check(self, now);
        if (goes_on <= 0 || self->current == NULL) {
            number = goes_on < 0 ? FAILED : NOT_HEARD;
        }
    }
    if (number == ELSEWHERE) {
        return Py_NewRef(self->disable);
    }
    if (number >= 0) {
        return number == FAILED ? NULL : native_slowly(self->slow_resume, code, offset);
    }
    if (native_log_reserve(&self->log) < 0 || enter(self, code) < 0) {
        return none_or_failed(self, -1);
    }
    native_log_add(&self->log, number);
    native_log_add(&self->log, now);
    native_log_add(&self->log, at);
    Py_RETURN_NONE;
}

/* Returns 1 when it is written, 0 when it does not fit, -1 with an error. */
static int
write_leave(Tape *self, PyObject *code)
{
    if (!fits(self, code) || self->depth == 0) {
        return 0;
    }
    if (native_log_reserve(&self->log) < 0) {
        return -1;
    }
    native_log_add(&self->log, native_now());
    native_log_add(&self->log, LEAVE);
    go_back(self);
    return 1;
}

static PyObject *
leave(Tape *self, PyObject *const *arguments)
{
    int written = write_leave(self, arguments[0]);
    return written == 0 ? native_slowly(self->slow_leave, arguments[0], NULL) : none_or_failed(self, written);
}

static PyObject *
unwind(Tape *self, PyObject *const *arguments)
{
    PyObject *code = arguments[0];
    /* A global event: mostly of a library's code. */
    if (native_by_identity(self->codes, code) == NULL) {
        return none_or_failed(self, PyErr_Occurred() ? -1 : 0);
    }
    int written = write_leave(self, code);
    if (written != 0) {
        return none_or_failed(self, written);
    }
    PyObject *result = native_slowly(self->slow_unwind, code, NULL);
    if (result == NULL && PyThread_get_thread_ident() == self->own) {
        /* The frame goes all the same, and no other event says so. */
        Py_CLEAR(self->current);
    }
    return result;
}

NATIVE_CALLBACK(Tape, line, 2)
NATIVE_CALLBACK(Tape, start, 2)
NATIVE_CALLBACK(Tape, resume, 2)
NATIVE_CALLBACK(Tape, leave, 3)
NATIVE_CALLBACK(Tape, unwind, 3)

static PyObject *
take(Tape *self, PyObject *Py_UNUSED(ignored))
{
    forget_stack(self);
    self->seen = 0;
    return native_log_take(&self->log);
}

static PyObject *
load(Tape *self, PyObject *stack)
{
    if (!PyTuple_Check(stack)) {
        PyErr_SetString(PyExc_TypeError, "load() takes a tuple of code objects, outermost first");
        return NULL;
    }
    forget_stack(self);
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(stack); index++) {
        PyObject *code = PyTuple_GET_ITEM(stack, index);
        if (self->current == NULL) {
            self->current = Py_NewRef(code);
        }
        else if (enter(self, code) < 0) {
            forget_stack(self);
            return NULL;
        }
    }
    self->deadline = native_now() + FIRST_NS;
    Py_RETURN_NONE;
}

static PyObject *
size(Tape *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSsize_t(self->log.count / 2);
}

static PyObject *
make(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"own", "codes", "numbers", "resumes", "files", "disable", "line", "start", "resume",
                               "leave", "unwind", "hear", "pause", "fail", NULL};
    Tape *self = (Tape *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            arguments, names, "kO!O!O!O!OOOOOOOOO:Tape", keywords, &self->own, &PyDict_Type, &self->codes,
            &PyDict_Type, &self->numbers, &PyDict_Type, &self->resumes, &PyDict_Type, &self->files, &self->disable,
            &self->slow_line, &self->slow_start, &self->slow_resume, &self->slow_leave, &self->slow_unwind, &self->hear,
            &self->pause, &self->fail)) {
        /* Nothing of it is ours yet. */
        self->codes = self->numbers = self->resumes = self->files = self->disable = NULL;
        self->slow_line = self->slow_start = self->slow_resume = self->slow_leave = self->slow_unwind = NULL;
        self->hear = self->pause = self->fail = NULL;
        Py_DECREF(self);
        return NULL;
    }
    PyObject *owned[] = {self->codes, self->numbers, self->resumes, self->files, self->disable, self->slow_line,
                         self->slow_start, self->slow_resume, self->slow_leave, self->slow_unwind, self->hear,
                         self->pause, self->fail};
    for (size_t index = 0; index < Py_ARRAY_LENGTH(owned); index++) {
        Py_INCREF(owned[index]);
    }
    if (native_log_reserve(&self->log) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
traverse(Tape *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->current);
    for (Py_ssize_t index = 0; index < self->depth; index++) {
        Py_VISIT(self->callers[index]);
    }
    Py_VISIT(self->codes);
    Py_VISIT(self->numbers);
    Py_VISIT(self->resumes);
    Py_VISIT(self->files);
    Py_VISIT(self->disable);
    Py_VISIT(self->slow_line);
    Py_VISIT(self->slow_start);
    Py_VISIT(self->slow_resume);
    Py_VISIT(self->slow_leave);
    Py_VISIT(self->slow_unwind);
    Py_VISIT(self->hear);
    Py_VISIT(self->pause);
    Py_VISIT(self->fail);
    return 0;
}

static int
clear(Tape *self)
{
    forget_stack(self);
    Py_CLEAR(self->codes);
    Py_CLEAR(self->numbers);
    Py_CLEAR(self->resumes);
    Py_CLEAR(self->files);
    Py_CLEAR(self->disable);
    Py_CLEAR(self->slow_line);
    Py_CLEAR(self->slow_start);
    Py_CLEAR(self->slow_resume);
    Py_CLEAR(self->slow_leave);
    Py_CLEAR(self->slow_unwind);
    Py_CLEAR(self->hear);
    Py_CLEAR(self->pause);
    Py_CLEAR(self->fail);
    return 0;
}

static void
dealloc(Tape *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    PyMem_RawFree(self->callers);
    native_log_free(&self->log);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"on_line", (PyCFunction)(void (*)(void))on_line, METH_FASTCALL, NULL},
    {"on_start", (PyCFunction)(void (*)(void))on_start, METH_FASTCALL, NULL},
    {"on_resume", (PyCFunction)(void (*)(void))on_resume, METH_FASTCALL, NULL},
    {"on_leave", (PyCFunction)(void (*)(void))on_leave, METH_FASTCALL, NULL},
    {"on_unwind", (PyCFunction)(void (*)(void))on_unwind, METH_FASTCALL, NULL},
    {"take", (PyCFunction)take, METH_NOARGS, NULL},
    {"load", (PyCFunction)load, METH_O, NULL},
    {"size", (PyCFunction)size, METH_NOARGS, NULL},
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

PyType_Spec native_tape_spec = {
    .name = "gpumem_magic.recording.marks._native.Tape",
    .basicsize = sizeof(Tape),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
