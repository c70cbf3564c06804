//! What needs the insides: crashes between the steps, and addresses.
