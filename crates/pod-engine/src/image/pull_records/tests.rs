use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn basic(password: &str) -> PullCredentials {
    PullCredentials::Basic { username: "me".to_owned(), password: password.to_owned().into() }
}

fn holders(hashes: &[&str]) -> Access {
    Access::Credentials(hashes.iter().map(|hash| (*hash).to_owned()).collect())
}

#[tokio::test]
async fn what_was_there_before_is_open_to_all_and_what_was_pulled_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    assert_eq!(records.access("r.example/a:1", "id").await, Access::Everyone);
    let intent = records.begin("r.example/a:1").await.unwrap();
    assert_eq!(records.access("r.example/a:1", "id").await, Access::Unknown, "a pull is under way");
    intent.succeed("id", Some("h1".to_owned()), NOW).await;
    assert_eq!(records.access("r.example/a:1", "id").await, holders(&["h1"]));
    assert_eq!(
        records.access("r.example/a:2", "id").await,
        holders(&["h1"]),
        "another tag of the same image"
    );
    assert_eq!(records.access("other.example/a:1", "id").await, Access::Unknown, "another repository");
    records.begin("r.example/a:1").await.unwrap().succeed("id", Some("h2".to_owned()), NOW).await;
    assert_eq!(records.access("r.example/a:1", "id").await, holders(&["h1", "h2"]));
    records.begin("r.example/a:1").await.unwrap().succeed("id", None, NOW).await;
    assert_eq!(records.access("r.example/a:1", "id").await, Access::Everyone);
    // The next process reads the same records.
    let again = PullRecords::new(folder.path());
    assert_eq!(again.access("r.example/a:1", "id").await, Access::Everyone);
    assert_eq!(std::fs::read_dir(folder.path().join("pulling")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_pull_whose_end_is_not_known_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    drop(PullRecords::new(folder.path()).begin("a").await.unwrap());
    let records = PullRecords::new(folder.path());
    assert_eq!(records.access("a", "id").await, Access::Unknown);
    records.begin("a").await.unwrap().finish().await;
    assert_eq!(
        records.access("a", "id").await,
        Access::Unknown,
        "that a pull fails says nothing about the one before"
    );
    records.begin("a").await.unwrap().succeed("id", None, NOW).await;
    assert_eq!(records.access("a", "id").await, Access::Everyone);
    assert_eq!(std::fs::read_dir(folder.path().join("pulling")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_failed_pull_leaves_what_was_there_open_and_not_before_the_last_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    let (first, second) = (records.begin("a").await.unwrap(), records.begin("a").await.unwrap());
    first.finish().await;
    assert_eq!(records.access("a", "id").await, Access::Unknown);
    second.finish().await;
    assert_eq!(records.access("a", "id").await, Access::Everyone);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_opens_nothing_and_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    records.begin("a").await.unwrap().succeed("id", None, NOW).await;
    std::fs::write(file(&folder.path().join("pulled"), "id"), "{").unwrap();
    assert_eq!(records.access("a", "id").await, Access::Unknown);
    records.begin("a").await.unwrap().succeed("id", Some("h".to_owned()), NOW).await;
    assert_eq!(records.access("a", "id").await, holders(&["h"]));
}

#[tokio::test]
async fn records_of_images_that_are_gone_go_too() {
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    let later: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for (image, id, time) in [("a", "gone", NOW), ("b", "kept", NOW), ("c", "new", later)] {
        records.begin(image).await.unwrap().succeed(id, Some("h".to_owned()), time).await;
    }
    records.prune(&["kept"].into(), later).await;
    assert_eq!(records.access("a", "gone").await, Access::Everyone);
    assert_eq!(records.access("b", "kept").await, holders(&["h"]));
    assert_eq!(records.access("c", "new").await, holders(&["h"]));
}

#[tokio::test]
async fn nobody_else_can_look_into_the_records_and_no_secret_is_in_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::new(folder.path());
    records.begin("a").await.unwrap().succeed("id", Some(hash(&basic("hunter2"))), NOW).await;
    let pulled = folder.path().join("pulled");
    assert_eq!(std::fs::metadata(&pulled).unwrap().permissions().mode() & 0o777, 0o700);
    let content = std::fs::read_to_string(file(&pulled, "id")).unwrap();
    assert!(!content.contains("hunter2") && content.contains("\"hashes\""), "{content}");
}

#[test]
fn credentials_that_differ_have_other_hashes() {
    let all = [
        basic("a"),
        basic("b"),
        PullCredentials::Basic { username: "m".to_owned(), password: "ea".to_owned().into() },
        PullCredentials::IdentityToken("a".to_owned().into()),
        PullCredentials::RegistryToken("a".to_owned().into()),
    ];
    let hashes: BTreeSet<String> = all.iter().map(hash).collect();
    assert_eq!(hashes.len(), all.len());
    assert_eq!(hash(&basic("a")), hash(&basic("a")));
}
