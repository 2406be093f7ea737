/* Finds the objects of some classes among all that Python's collector tracks: 200,000 to 400,000 in a notebook. In Python
   they are put into a list first, and most of what that takes is to come by each of them once more. */

#include "native.h"

/* A table of addresses, at most half full, so that a class that is not in it is told by one look or two. */
typedef struct {
    const void **slots;
    size_t mask;
    PyObject *found;
    int is_failed;
} Search;

static inline size_t
first_slot(const Search *search, const void *address)
{
    uintptr_t bits = (uintptr_t)address;
    return (size_t)((bits >> 4) ^ (bits >> 13)) & search->mask; /* the lowest bits are those of every object's place */
}

static inline int
has(const Search *search, const void *address)
{
    size_t slot = first_slot(search, address);
    while (search->slots[slot] != NULL && search->slots[slot] != address) {
        slot = (slot + 1) & search->mask;
    }
    return search->slots[slot] != NULL;
}

static void
add(Search *search, const void *address)
{
    size_t slot = first_slot(search, address);
    while (search->slots[slot] != NULL && search->slots[slot] != address) {
        slot = (slot + 1) & search->mask;
    }
    search->slots[slot] = address;
}

/* Makes no object that the collector tracks, which is not allowed here. */
static int
visit(PyObject *object, void *argument)
{
    Search *search = argument;
    if (has(search, Py_TYPE(object)) && PyList_Append(search->found, object) < 0) {
        search->is_failed = 1;
        return 0;
    }
    return 1;
}

PyObject *
native_tracked(PyObject *Py_UNUSED(module), PyObject *kinds)
{
    if (!PyTuple_Check(kinds)) {
        PyErr_SetString(PyExc_TypeError, "tracked() takes a tuple of classes");
        return NULL;
    }
    size_t room = 16;
    while (room < 2 * (size_t)PyTuple_GET_SIZE(kinds)) {
        room *= 2;
    }
    Search search = {.slots = PyMem_RawCalloc(room, sizeof(void *)), .mask = room - 1};
    if (search.slots == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(kinds); index++) {
        add(&search, PyTuple_GET_ITEM(kinds, index));
    }
    search.found = PyList_New(0);
    if (search.found != NULL) {
        PyUnstable_GC_VisitObjects(visit, &search);
        if (search.is_failed) {
            Py_CLEAR(search.found);
        }
    }
    PyMem_RawFree((void *)search.slots);
    return search.found;
}
