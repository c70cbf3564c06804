//! Replays the corpora of the fuzz targets.

#[path = "../../fuzz/targets.rs"]
mod targets;

/// Runs a target over every file of its corpus.
fn replay(target: &str, body: fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> =
        std::fs::read_dir(&folder).expect("a corpus").map(|file| file.expect("a file").path()).collect();
    assert!(files.len() >= 8, "{folder} has {} files", files.len());
    for file in files {
        let data = std::fs::read(&file).expect("a file of the corpus");
        let outcome = std::panic::catch_unwind(|| body(&data));
        assert!(outcome.is_ok(), "{} fails: see the panic above", file.display());
    }
}

#[test]
fn the_corpus_of_frames_passes() {
    replay("frames", targets::frames);
}

#[test]
fn the_corpus_of_connections_passes() {
    replay("connection", targets::connection);
}
