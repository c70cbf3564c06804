//! Starts the control planes that all test binaries of a run share, and keeps them until standard input ends.
//!
//! The argument is the file that says how to reach them; `dev/test` passes it to the tests in `VK_SHARED_CONTROL_PLANES`.

use std::{error::Error, path::Path};

use vk_testing::ControlPlane;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).ok_or("usage: shared-control-planes FILE")?;
    let planes = Box::pin(ControlPlane::start_shared(Path::new(&file))).await?;
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    drop(planes);
    Ok(())
}
