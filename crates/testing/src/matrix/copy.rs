//! `kubectl cp`.

use std::fs;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::Stage;

/// A file of so many bytes into the container and back, and nothing is lost.
pub async fn both_ways(stage: &Stage, bytes: usize) {
    let mut content = vec![0; bytes];
    StdRng::seed_from_u64(42).fill_bytes(&mut content);
    let (there, back) = (stage.folder.path().join("there"), stage.folder.path().join("back"));
    fs::write(&there, &content).expect("a file is written");
    let path = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();
    stage.good(&["cp", &path(&there), "web:/tmp/copied", "-c", "main"]).await;
    stage.good(&["cp", "web:/tmp/copied", &path(&back), "-c", "main"]).await;
    let returned = fs::read(&back).expect("the file is back");
    assert_eq!(returned.len(), content.len());
    assert!(returned == content, "the file came back changed");
}

/// A file that is not there.
pub async fn missing_file(stage: &Stage) {
    let target = stage.folder.path().join("missing");
    let output = stage.run(&["cp", "web:/tmp/nowhere", target.to_str().expect("a path in UTF-8")]).await;
    assert!(!output.success() && format!("{output:?}").contains("No such file"), "{output:?}");
    assert!(!target.exists());
}
