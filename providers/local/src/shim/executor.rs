//! The last step of a start: looks the program up and executes it.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStringExt as _, fs::PermissionsExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use libcontainer::{
    oci_spec::runtime::Spec,
    workload::{Executor, ExecutorError, ExecutorValidationError},
};
use rustix::fs::{Mode, OFlags};
use vk_provider::go_text::io_error;

use super::{
    ContainerProcess, print_error,
    protocol::{self, HelperReport},
};

/// PATH if none is set.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Maximum size of `/etc/passwd`.
const MAX_PASSWD: u64 = 4 << 20;
/// Exit code of a program that exists but could not be executed.
const EXEC_FAILED: i32 = 255;

/// Executes the container's program; reports errors with the texts of runc.
#[derive(Clone, Debug)]
pub(super) struct ContainerExecutor {
    pub(super) report: Arc<OwnedFd>,
    /// What to execute; the spec does not have it.
    pub(super) process: Arc<ContainerProcess>,
}

impl Executor for ContainerExecutor {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.program().map(drop).map_err(|message| {
            let _ = protocol::report_to(&*self.report, &HelperReport::Error(message.clone()));
            ExecutorValidationError::ArgValidationError(message)
        })
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let program = self.program().map_err(ExecutorError::Other)?;
        let mut command = Command::new(&program);
        // libcontainer has set HOME from the container's `/etc/passwd` in the environment of this process.
        let home = env::var_os("HOME").filter(|_| self.process.variable("HOME").is_none_or(str::is_empty));
        command.env_clear().envs(self.process.variables()).envs(home.map(|home| ("HOME", home)));
        run(command, &program, &self.process.args)
    }
}

impl ContainerExecutor {
    fn program(&self) -> Result<PathBuf, String> {
        lookup(&self.process.args, self.process.variable("PATH").unwrap_or(PATH))
    }
}

/// Executes the program. If the kernel refuses, the reason goes to the program's stderr, as with runc.
pub(super) fn run(mut command: Command, program: &Path, args: &[String]) -> ! {
    let error = command.arg0(&args[0]).args(&args[1..]).exec();
    print_error(format_args!("exec {}: {}", program.display(), io_error(&error)));
    std::process::exit(EXEC_FAILED)
}

/// Looks a program up. Errors have the text of Go's `exec.LookPath`, which users know from other runtimes.
pub(super) fn lookup(args: &[String], path: &str) -> Result<PathBuf, String> {
    let Some(name) = args.first().filter(|name| !name.is_empty()) else {
        return Err("exec: \"\": executable file not found in $PATH".to_owned());
    };
    if name.contains('/') {
        let found = executable(Path::new(name));
        return found.map(|()| name.into()).map_err(|why| format!("exec: {name:?}: {why}"));
    }
    let places = path.split(':').map(|place| if place.is_empty() { "." } else { place });
    let mut files = places.map(|place| Path::new(place).join(name));
    files
        .find(|file| executable(file).is_ok())
        .ok_or_else(|| format!("exec: {name:?}: executable file not found in $PATH"))
}

fn executable(file: &Path) -> Result<(), String> {
    let found =
        fs::metadata(file).map_err(|error| format!("stat {}: {}", file.display(), io_error(&error)))?;
    if found.is_dir() {
        return Err("is a directory".to_owned());
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err("permission denied".to_owned());
    }
    Ok(())
}

/// `HOME` from the container's `/etc/passwd`, unless it is set.
pub(super) fn passwd_home(process: &ContainerProcess, uid: u32) -> Option<OsString> {
    let unset = process.variable("HOME").is_none_or(str::is_empty);
    unset.then(|| home(&read(Path::new("/etc/passwd")).unwrap_or_default(), uid))
}

/// Reads a file that the container's processes may have replaced: never blocks, and limits the size.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MAX_PASSWD).read_to_end(&mut content)?;
    }
    Ok(content)
}

fn home(passwd: &[u8], uid: u32) -> OsString {
    let uid = uid.to_string();
    let mut lines = passwd.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let found = lines.find_map(|mut fields| {
        (fields.nth(2)? == uid.as_bytes()).then(|| fields.nth(2).map(<[u8]>::to_vec)).flatten()
    });
    OsString::from_vec(found.filter(|home| !home.is_empty()).unwrap_or_else(|| b"/".to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    #[test]
    fn a_program_is_found_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = format!("/nowhere:{}", dir.path().display());
        let file = dir.path().join("tool");
        fs::write(&file, "").unwrap();
        let missing = "exec: \"tool\": executable file not found in $PATH";
        assert_eq!(lookup(&args("tool"), &path).unwrap_err(), missing);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(lookup(&args("tool"), &path).unwrap(), file);
    }

    #[test]
    fn lookup_errors_have_the_texts_of_runc() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            lookup(&args("/absent"), PATH).unwrap_err(),
            "exec: \"/absent\": stat /absent: no such file or directory"
        );
        let name = dir.path().to_str().unwrap();
        assert_eq!(lookup(&args(name), PATH).unwrap_err(), format!("exec: {name:?}: is a directory"));
        let file = dir.path().join("plain");
        fs::write(&file, "").unwrap();
        let name = file.to_str().unwrap();
        assert_eq!(lookup(&args(name), PATH).unwrap_err(), format!("exec: {name:?}: permission denied"));
        assert_eq!(lookup(&[], PATH).unwrap_err(), "exec: \"\": executable file not found in $PATH");
    }

    #[test]
    fn home_comes_from_the_containers_passwd() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/srv/web:/bin/sh\nnone:x:7:7:::\n";
        assert_eq!(home(passwd, 0), "/root");
        assert_eq!(home(passwd, 1000), "/srv/web");
        assert_eq!(home(passwd, 7), "/");
        assert_eq!(home(passwd, 99), "/");
    }
}
