/* What the two halves share: the clock, a log that grows, look-ups by identity. */

#ifndef GPUMEM_MAGIC_NATIVE_H
#define GPUMEM_MAGIC_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#error "All of it relies on the global interpreter lock; without it, what is written in Python does the same."
#endif

/* Numbers, one after the other, that Python reads as an array of 64 bits. */
typedef struct {
    int64_t *items;
    Py_ssize_t count;
    Py_ssize_t room;
} Log;

/* Unix nanoseconds, of the clock that time.time_ns() reads. */
int64_t native_now(void);

/* Makes room for a few more numbers. Returns -1 with MemoryError set, and leaves the log as it was. */
int native_log_grow(Log *log);

/* Returns what was written as bytes. */
PyObject *native_log_copy(const Log *log);

/* Returns what was written as bytes and forgets it; NULL with an error set, and then nothing is forgotten. */
PyObject *native_log_take(Log *log);

void native_log_free(Log *log);

/* Looks up an object's identity in a dict that has id() for keys. Returns a borrowed reference; NULL without an error
   where it is missing. */
PyObject *native_by_identity(PyObject *dict, const void *object);

/* Whether an event comes with as many arguments as it should; sets an error otherwise. */
int native_has_arguments(Py_ssize_t count, Py_ssize_t wanted);

/* Defines `on_event`, which sys.monitoring calls, by `event`. The interpreter keeps no reference to what it calls; Python
   that runs meanwhile, in any thread, may end the watch and with it the last one. */
#define NATIVE_CALLBACK(type, event, wanted)                                                                           \
    static PyObject *on_##event(type *self, PyObject *const *arguments, Py_ssize_t count)                              \
    {                                                                                                                  \
        if (!native_has_arguments(count, wanted)) {                                                                    \
            return NULL;                                                                                               \
        }                                                                                                              \
        Py_INCREF(self);                                                                                               \
        PyObject *result = event(self, arguments);                                                                     \
        Py_DECREF(self);                                                                                               \
        return result;                                                                                                 \
    }

/* Calls what takes the events that are not common: with the code, the number that is not NULL, and the frame. At the
   recursion limit, which is the cell's, there is no room for that, and the event is lost. */
PyObject *native_slowly(PyObject *function, PyObject *code, PyObject *number);

/* Whether the error that is set is RecursionError, which is cleared then. */
int native_forgot_recursion(void);

/* As many as one event writes at most. */
#define NATIVE_EVENT 4

static inline int
native_log_reserve(Log *log)
{
    return log->room - log->count >= NATIVE_EVENT ? 0 : native_log_grow(log);
}

static inline void
native_log_add(Log *log, int64_t number)
{
    log->items[log->count++] = number;
}

/* Their heap types, for the module that makes them. */
extern PyType_Spec native_tape_spec;
extern PyType_Spec native_watch_spec;

/* Returns a list of all tracked objects whose class is one of a tuple's. */
PyObject *native_tracked(PyObject *module, PyObject *kinds);

#endif
