//! A network of its own for each pod.
