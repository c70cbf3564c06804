use super::*;
use crate::image::access::credentials_hash;
use vk_provider::resolve::PullCredentials;

fn holders(hashes: &[&str]) -> Access {
    Access::Credentials(hashes.iter().map(|hash| (*hash).to_owned()).collect())
}

/// An image with an id and names.
fn image(id: &str, tags: &[&str], digests: &[&str]) -> Image {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Image { id: id.to_owned(), tags: names(tags), digests: names(digests), ..Image::default() }
}

async fn access(records: &Arc<PullRecords>, name: &str, id: &str) -> Access {
    records.access(name, &image(id, &[], &[])).await
}

async fn pulled(records: &Arc<PullRecords>, name: &str, id: &str, hash: Option<&str>) {
    records.begin(name, None).await.unwrap().succeed(id, Some(id), hash.map(ToOwned::to_owned)).await;
}

/// Resolves all intents without an active pull, as housekeeping does when it finds them for the second time.
async fn resolve(records: &Arc<PullRecords>, present: Option<Image>) {
    records.unresolved().await;
    for intent in records.unresolved().await {
        records.resolve(intent, present.clone()).await;
    }
}

fn intents(folder: &Path) -> usize {
    fs::read_dir(folder.join("pulling")).unwrap().count()
}

#[tokio::test]
async fn what_was_there_before_is_open_to_all_and_what_was_pulled_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    assert_eq!(access(&records, "r.example/a:1", "id").await, Access::Everyone);
    let intent = records.begin("r.example/a:1", None).await.unwrap();
    assert_eq!(access(&records, "r.example/a:1", "id").await, Access::Unknown, "a pull is under way");
    intent.succeed("id", Some("id"), Some("h1".to_owned())).await;
    assert_eq!(access(&records, "r.example/a:1", "id").await, holders(&["h1"]));
    let another_tag = access(&records, "r.example/a:2", "id").await;
    assert_eq!(another_tag, holders(&["h1"]), "another tag of the same image");
    let other = access(&records, "other.example/a:1", "id").await;
    assert_eq!(other, Access::Unknown, "another repository");
    pulled(&records, "r.example/a:1", "id", Some("h2")).await;
    assert_eq!(access(&records, "r.example/a:1", "id").await, holders(&["h1", "h2"]));
    pulled(&records, "r.example/a:1", "id", None).await;
    assert_eq!(access(&records, "r.example/a:1", "id").await, Access::Everyone);
    // The next process reads the same records.
    let again = PullRecords::new(folder.path());
    assert_eq!(access(&again, "r.example/a:1", "id").await, Access::Everyone);
    assert_eq!(intents(folder.path()), 0);
}

/// The name may belong to another image when the pulled one is inspected.
#[tokio::test]
async fn an_image_is_closed_by_the_digest_that_its_pull_returned() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    let digest = format!("docker.io/library/a@sha256:{}", "1".repeat(64));
    let intent = records.begin("a:1", None).await.unwrap();
    intent.succeed(&digest, Some("other"), Some("h".to_owned())).await;
    let pulled = image("id", &[], &[&digest]);
    assert_eq!(records.access("a:1", &pulled).await, holders(&["h"]));
    assert_eq!(intents(folder.path()), 0);
}

#[tokio::test]
async fn a_pull_whose_end_is_not_known_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    drop(PullRecords::new(folder.path()).begin("a", None).await.unwrap());
    let records = PullRecords::new(folder.path());
    assert_eq!(access(&records, "a", "id").await, Access::Unknown);
    records.begin("a", None).await.unwrap().finish().await;
    assert_eq!(
        access(&records, "a", "id").await,
        Access::Unknown,
        "that a pull fails says nothing about the one before"
    );
    pulled(&records, "a", "id", None).await;
    assert_eq!(access(&records, "a", "id").await, Access::Everyone);
    assert_eq!(intents(folder.path()), 1, "the runtime may still be adding an image for the first one");
    resolve(&records, None).await;
    assert_eq!(intents(folder.path()), 0);
}

/// The runtime has committed an image under several names, and the process died before it recorded the pull.
#[tokio::test]
async fn after_a_crash_an_image_is_closed_under_all_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let digest = format!("docker.io/library/a@sha256:{}", "1".repeat(64));
    drop(PullRecords::new(folder.path()).begin("a:1", None).await.unwrap());
    let records = PullRecords::new(folder.path());
    let committed = image("id", &["docker.io/library/a:1", "docker.io/library/a:2"], &[&digest]);
    for name in ["a:1", "docker.io/a:1", "a:2", digest.as_str()] {
        assert_eq!(records.access(name, &committed).await, Access::Unknown, "{name}");
    }
    let other = image("other", &["docker.io/library/b:1"], &[]);
    assert_eq!(records.access("b:1", &other).await, Access::Everyone);
}

/// The next pull of the name gets another image, and the name no longer leads to the one that was committed.
#[tokio::test]
async fn after_a_crash_an_image_stays_closed_when_its_name_moves_on() {
    let folder = tempfile::tempdir().unwrap();
    drop(PullRecords::new(folder.path()).begin("a:1", None).await.unwrap());
    let records = PullRecords::new(folder.path());
    let committed = image("first", &["docker.io/library/a:1"], &[]);
    let intent = records.begin("a:1", Some(&committed)).await.unwrap();
    assert!(intent.follows_unknown_result());
    intent.close(&committed).await.unwrap();
    intent.succeed("second", Some("second"), None).await;
    resolve(&records, Some(image("second", &["docker.io/library/a:1"], &[]))).await;
    assert_eq!(intents(folder.path()), 0);
    assert_eq!(access(&records, "a:1", "first").await, Access::Unknown);
    assert_eq!(access(&records, "a:1", "second").await, Access::Everyone);
}

/// The runtime commits the image of an interrupted pull after somebody else, who has no credentials, began to pull the same name.
#[tokio::test]
async fn an_image_that_the_runtime_adds_late_is_closed_although_another_pull_failed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    let preloaded = image("preloaded", &["docker.io/library/a:1"], &[]);
    drop(records.begin("a:1", Some(&preloaded)).await.unwrap());
    let stranger = records.begin("a:1", Some(&preloaded)).await.unwrap();
    stranger.close(&preloaded).await.unwrap();
    stranger.finish().await;
    let late = image("late", &["docker.io/library/a:1"], &[]);
    assert_eq!(records.access("a:1", &late).await, Access::Unknown);
    assert_eq!(records.access("a:1", &preloaded).await, Access::Everyone);
    resolve(&records, Some(late.clone())).await;
    assert_eq!(records.access("a:1", &late).await, Access::Unknown);
    assert_eq!(intents(folder.path()), 0);
}

#[tokio::test]
async fn a_pull_of_another_node_is_seen_and_not_taken_for_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (PullRecords::new(folder.path()), PullRecords::new(folder.path()));
    let active = one.begin("a", None).await.unwrap();
    assert_eq!(access(&two, "a", "id").await, Access::Unknown);
    let second = two.begin("a", None).await.unwrap();
    assert!(!second.follows_unknown_result());
    second.finish().await;
    assert_eq!(access(&two, "a", "id").await, Access::Unknown, "the other node still pulls");
    active.succeed("id", Some("id"), Some("h".to_owned())).await;
    assert_eq!(access(&two, "a", "id").await, holders(&["h"]));
}

#[tokio::test]
async fn a_failed_pull_leaves_what_was_there_open_and_not_before_the_last_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    let (first, second) = (records.begin("a", None).await.unwrap(), records.begin("a", None).await.unwrap());
    first.finish().await;
    assert_eq!(access(&records, "a", "id").await, Access::Unknown);
    second.finish().await;
    assert_eq!(access(&records, "a", "id").await, Access::Everyone);
}

#[tokio::test]
async fn a_pull_that_was_cut_off_leaves_what_was_there_open() {
    let folder = tempfile::tempdir().unwrap();
    let preloaded = image("preloaded", &["docker.io/library/a:1"], &[]);
    for _ in 0..3 {
        let records = PullRecords::new(folder.path());
        let intent = records.begin("a:1", Some(&preloaded)).await.unwrap();
        assert_eq!(records.access("a:1", &preloaded).await, Access::Everyone, "during the pull");
        drop(intent);
        assert_eq!(records.access("a:1", &preloaded).await, Access::Everyone, "after it");
        assert!(intents(folder.path()) <= 2, "the newest of the earlier ones, and this one");
    }
    let records = PullRecords::new(folder.path());
    let committed = image("committed", &["docker.io/library/a:1"], &[]);
    assert_eq!(records.access("a:1", &committed).await, Access::Unknown, "what the pull may have added");
    let intent = records.begin("a:1", Some(&committed)).await.unwrap();
    intent.finish().await;
    assert_eq!(records.access("a:1", &committed).await, Access::Unknown);
    assert_eq!(records.access("a:2", &preloaded).await, Access::Everyone);
}

#[tokio::test]
async fn pulls_that_were_cut_off_leave_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    for _ in 0..5 {
        drop(records.begin("a", None).await.unwrap());
    }
    assert_eq!(intents(folder.path()), 2, "the last one, and the one before it");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_opens_nothing_and_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    pulled(&records, "a", "id", None).await;
    fs::write(records.record("id"), "{").unwrap();
    assert_eq!(access(&records, "a", "id").await, Access::Unknown);
    pulled(&records, "a", "id", Some("h")).await;
    assert_eq!(access(&records, "a", "id").await, holders(&["h"]));
}

#[tokio::test]
async fn records_of_images_that_are_gone_go_too() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    for (image, id) in [("a", "gone"), ("b", "kept")] {
        pulled(&records, image, id, Some("h")).await;
    }
    for _ in 0..2 {
        records.prune(["kept".to_owned()].into()).await;
    }
    assert_eq!(access(&records, "a", "gone").await, Access::Everyone);
    assert_eq!(access(&records, "b", "kept").await, holders(&["h"]));
}

/// The images are listed, one of them is pulled, and then the records are pruned.
#[tokio::test]
async fn a_record_that_may_be_newer_than_the_list_of_images_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (records, other_node) = (PullRecords::new(folder.path()), PullRecords::new(folder.path()));
    pulled(&records, "a", "id", Some("h")).await;
    records.prune(BTreeSet::new()).await;
    assert_eq!(access(&records, "a", "id").await, holders(&["h"]));
    pulled(&other_node, "a", "id", Some("h")).await;
    records.prune(BTreeSet::new()).await;
    assert_eq!(access(&records, "a", "id").await, holders(&["h"]), "the same credentials as before");
    records.prune(BTreeSet::new()).await;
    assert_eq!(access(&records, "a", "id").await, Access::Everyone);
}

/// After a power loss the intent must not be gone without the record. The folder is opened only to be synced.
#[tokio::test]
async fn the_folder_of_the_records_is_synced_before_the_intent_is_removed() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    pulled(&records, "a", "id", None).await;
    let queue = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    add_watch(&queue, &records.pulled, WatchFlags::MOVED_TO | WatchFlags::OPEN).unwrap();
    add_watch(&queue, &records.pulling, WatchFlags::DELETE).unwrap();
    pulled(&records, "b", "other", Some("h")).await;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&queue, &mut buffer);
    let events: Vec<ReadFlags> = std::iter::from_fn(|| reader.next().ok().map(|event| event.events()))
        .filter(|event| *event != ReadFlags::OPEN)
        .collect();
    assert_eq!(events, [ReadFlags::MOVED_TO, ReadFlags::OPEN | ReadFlags::ISDIR, ReadFlags::DELETE]);
}

#[tokio::test]
async fn nobody_else_can_look_into_the_records_and_no_secret_is_in_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    let credentials = PullCredentials::basic("example.com", "me", "hunter2");
    pulled(&records, "a", "id", Some(&credentials_hash(&credentials))).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&records.pulled), mode(&records.record("id"))), (0o700, 0o600));
    let content = fs::read_to_string(records.record("id")).unwrap();
    assert!(!content.contains("hunter2") && content.contains("\"hashes\""), "{content}");
}
