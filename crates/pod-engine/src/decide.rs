//! What to do next with a pod. Pure: no clock, no I/O.
