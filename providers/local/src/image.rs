//! Images: pulled or imported, unpacked, kept by their content.
