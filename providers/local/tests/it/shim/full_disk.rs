//! A full disk.

use std::{
    fs::{self, File},
    io::Write as _,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use vk_provider::ability::ExecOptions;
use vk_provider_local::shim::{Shim, State};
use vk_testing::eventually;

use super::bundle::{Bundle, SOON};

/// A small filesystem, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        mount("small", folder.path(), "tmpfs", MountFlags::empty(), c"size=256k").unwrap();
        Self(folder)
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = File::create(self.0.path().join("filler")).unwrap();
        for size in [4096, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
        assert!(fs::write(self.0.path().join("more"), [0; 4096]).is_err(), "the disk is full");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_full_disk_does_not_lose_the_exit_code() {
    let disk = SmallDisk::new();
    let mut bundle = Bundle::process("until [ -e full ]; do sleep 0.05; done; exit 7");
    let dir = disk.0.path().join("container");
    fs::create_dir(&dir).unwrap();
    bundle.shim = Shim::at(&dir);
    bundle.start().await.unwrap();
    assert!(matches!(bundle.shim.state().unwrap(), State::Running { .. }), "{}", bundle.shim_errors());
    disk.fill();
    // On another disk.
    fs::write(bundle.folder.path().join("full"), "").unwrap();
    let exit = bundle.wait_for_exit().await;
    assert_eq!((exit.code, exit.reason.as_str()), (7, "Error"), "{}", bundle.shim_errors());
}

/// The number of its process may be another process' by now.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_whose_exit_cannot_be_written_yet_takes_no_commands_and_no_signals() {
    let mut bundle = Bundle::process("until [ -e full ]; do sleep 0.05; done; exit 7");
    let dir = bundle.folder.path().join("container");
    fs::create_dir(&dir).unwrap();
    bundle.shim = Shim::at(&dir);
    bundle.start().await.unwrap();
    // As a disk that fails: a directory cannot be written to.
    fs::remove_file(dir.join("state.spare")).unwrap();
    fs::create_dir(dir.join("state.spare")).unwrap();
    fs::write(bundle.folder.path().join("full"), "").unwrap();
    eventually("the exit cannot be written", SOON, || async {
        let errors = bundle.shim_errors();
        if errors.contains("write the exit") { Ok(()) } else { Err(errors) }
    })
    .await;
    let command = ["sh", "-c", "exit 0"].map(str::to_owned);
    let started = bundle.shim.exec(&command, &ExecOptions::default()).await;
    let error = started.expect_err("nothing is started");
    assert!(error.to_string().contains("the container has exited"), "{error}");
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    fs::remove_dir(dir.join("state.spare")).unwrap();
    assert_eq!(bundle.wait_for_exit().await.code, 7, "{}", bundle.shim_errors());
}
