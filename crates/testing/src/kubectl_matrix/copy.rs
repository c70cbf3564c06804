//! `kubectl cp`.

use std::fs;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::KubectlSession;

/// Copies a file into the container and back; it is unchanged.
pub async fn both_ways(session: &KubectlSession, bytes: usize) {
    let mut content = vec![0; bytes];
    StdRng::seed_from_u64(42).fill_bytes(&mut content);
    let (there, back) = (session.folder.path().join("there"), session.folder.path().join("back"));
    fs::write(&there, &content).expect("a file is written");
    let path = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();
    session.run_ok(&["cp", &path(&there), "web:/tmp/copied", "-c", "main"]).await;
    session.run_ok(&["cp", "web:/tmp/copied", &path(&back), "-c", "main"]).await;
    let returned = fs::read(&back).expect("the file is back");
    assert_eq!(returned.len(), content.len());
    assert!(returned == content, "the file came back changed");
}

/// A missing file.
pub async fn missing_file(session: &KubectlSession) {
    let target = session.folder.path().join("missing");
    let output = session.run(&["cp", "web:/tmp/nowhere", target.to_str().expect("a path in UTF-8")]).await;
    assert!(!output.success() && format!("{output:?}").contains("No such file"), "{output:?}");
    assert!(!target.exists());
}
