//! Scripts of `dev/vendor-sdks` with the Python that `VK_VENDOR_SDKS` names.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

/// The interpreter that has the SDKs of vendors. Panics with what to install if there is none.
pub fn interpreter() -> String {
    std::env::var("VK_VENDOR_SDKS").expect(
        "VK_VENDOR_SDKS names no Python with the SDKs of cloud vendors: use `make test`, or set it to what \
         dev/vendor-sdks/build prints (it needs Python 3.10 with venv, and once a package index)",
    )
}

/// Runs a script, gives it these lines, and returns the lines that it prints. Panics with its errors if it fails.
pub fn run(script: &str, arguments: &[&str], input: &[Value]) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/vendor-sdks");
    let mut process = Command::new(interpreter())
        .arg(folder.join(script))
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the interpreter of VK_VENDOR_SDKS runs");
    let mut lines = String::new();
    for line in input {
        let _ = writeln!(lines, "{line}");
    }
    let mut stdin = process.stdin.take().expect("a pipe");
    // The script reads while it writes, so neither may wait for the other.
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = process.wait_with_output().expect("the script ends");
    let _ = writer.join();
    assert!(
        output.status.success(),
        "{script} failed: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// What the models of a vendor do not know, or know as something else, in a journal of requests and responses.
pub fn judge(cloud: &str, journal: &[Value]) -> Vec<String> {
    run("judge.py", &[cloud], journal)
}
