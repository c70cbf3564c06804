//! Generates the messages and clients of `proto/cri.proto`, without protoc.

// Cargo reads the instructions of a build script from its standard output.
#![allow(clippy::print_stdout)]

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("proto");
    println!("cargo:rerun-if-changed=proto/cri.proto");
    let files = protox::compile([folder.join("cri.proto")], [&folder])?;
    tonic_prost_build::configure()
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .build_transport(false)
        .generate_default_stubs(true)
        // The engine uses ordered maps too, so maps are moved instead of rebuilt.
        .btree_map(".")
        // They contain secrets: `proto.rs` implements `Debug` without them.
        .skip_debug([".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"])
        .compile_fds(files)?;
    Ok(())
}
