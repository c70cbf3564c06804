//! Who may use an image that is present.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_image_that_was_pulled_with_credentials_is_not_for_those_who_have_none() {
    let mut fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    let owner = pod("owner", &["right"]);
    fixture.ensure(&owner, "a:1", Policy::IfNotPresent).await.unwrap();
    for round in ["before", "after"] {
        let name = |who: &str| format!("{who} {round}");
        fixture.events.take();
        // A pod with the same credentials needs no pull.
        let pulls = fixture.pulls();
        fixture
            .ensure(&pod(&name("friend"), &["other", "right"]), "a:1", Policy::IfNotPresent)
            .await
            .unwrap();
        assert_eq!((fixture.events.take(), fixture.pulls()), (vec![PRESENT.to_owned()], pulls), "{round}");
        // Other pods must pull.
        let failed = fixture.fails(&pod(&name("stranger"), &[]), "a:1", Policy::IfNotPresent).await;
        assert_eq!(failed, ("ErrImagePull".to_owned(), "pull access denied".to_owned()), "{round}");
        // They must not learn that it is present.
        let failed = fixture.fails(&pod(&name("silent"), &["wrong"]), "a:1", Policy::Never).await;
        let message = "Container image \"a:1\" is not present with pull policy of Never";
        assert_eq!(failed, ("ErrImageNeverPull".to_owned(), message.to_owned()), "{round}");
        fixture.restart();
    }
    // After an anonymous pull every pod may use it.
    fixture.runtime.0.lock().password = None;
    fixture.ensure(&pod("first", &[]), "a:1", Policy::IfNotPresent).await.unwrap();
    let pulls = fixture.pulls();
    fixture.ensure(&pod("second", &["any"]), "a:1", Policy::Never).await.unwrap();
    assert_eq!(fixture.pulls(), pulls);
}

/// Access records belong to the image store, not to a node.
#[tokio::test(start_paused = true)]
async fn an_image_that_another_node_pulled_with_credentials_is_not_for_those_who_have_none() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.ensure(&pod("owner", &["right"]), "a:1", Policy::IfNotPresent).await.unwrap();
    let other = fixture.other_node();
    let failed = other.fails(&pod("stranger", &[]), "a:1", Policy::IfNotPresent).await;
    assert_eq!(failed, ("ErrImagePull".to_owned(), "pull access denied".to_owned()));
    assert_eq!(other.fails(&pod("silent", &[]), "a:1", Policy::Never).await.0, "ErrImageNeverPull");
    let pulls = fixture.pulls();
    other.ensure(&pod("friend", &["right"]), "a:1", Policy::IfNotPresent).await.unwrap();
    assert_eq!(fixture.pulls(), pulls);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_records_access_itself_is_asked() {
    let fixture = PullFixture::with(|settings| settings.pull_records = None);
    fixture.add_image("a:1");
    let failed = fixture.fails(&pod("u1", &[]), "a:1", Policy::Never).await;
    assert_eq!(failed.0, "ErrImageNeverPull", "the fake runtime knows nobody");
    fixture.runtime.0.lock().access = Some(Access::Everyone);
    fixture.ensure(&pod("u1", &[]), "a:1", Policy::Never).await.unwrap();
    let right = credentials_hash(&pod("u", &["right"]).1[0]);
    fixture.runtime.0.lock().access = Some(Access::Credentials([right].into()));
    fixture.ensure(&pod("u2", &["right"]), "a:1", Policy::Never).await.unwrap();
    fixture.fails(&pod("u3", &["wrong"]), "a:1", Policy::Never).await;
    assert_eq!(std::fs::read_dir(&fixture.settings.root).unwrap().count(), 0, "the engine records nothing");
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_was_cut_off_is_nobodys_until_one_succeeds() {
    let mut fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().slow = SECOND * 5;
    let owner = pod("owner", &["right"]);
    assert!(tokio::time::timeout(SECOND, fixture.ensure(&owner, "a:1", Policy::IfNotPresent)).await.is_err());
    // The runtime completed the pull after the process ended.
    fixture.add_image("a:1");
    fixture.restart();
    for _ in 0..2 {
        let (reason, _) = fixture.fails(&pod("stranger", &[]), "a:1", Policy::IfNotPresent).await;
        assert_eq!(reason, "ErrImagePull");
        fixture.puller.forget("stranger");
    }
    fixture.ensure(&owner, "a:1", Policy::IfNotPresent).await.unwrap();
    let pulls = fixture.pulls();
    fixture.ensure(&owner, "a:1", Policy::IfNotPresent).await.unwrap();
    assert_eq!(fixture.pulls(), pulls);
}

/// A crash between the runtime's commit and our record leaves the image closed, by whatever name it is asked for.
#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_was_cut_off_is_not_open_by_its_digest() {
    let mut fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().slow = SECOND * 5;
    let owner = pod("owner", &["right"]);
    assert!(tokio::time::timeout(SECOND, fixture.ensure(&owner, "a:1", Policy::IfNotPresent)).await.is_err());
    let digest = format!("a@sha256:{}", "1".repeat(64));
    let names = |name: &str| vec![format!("docker.io/library/{name}")];
    let image =
        Image { id: "id".to_owned(), tags: names("a:1"), digests: names(&digest), ..Image::default() };
    fixture.runtime.0.lock().images.insert("a:1".to_owned(), image.clone());
    fixture.runtime.0.lock().images.insert(digest.clone(), image);
    fixture.restart();
    let (reason, _) = fixture.fails(&pod("stranger", &[]), &digest, Policy::Never).await;
    assert_eq!(reason, "ErrImageNeverPull");
}

/// The runtime commits the image, and the answer is lost.
#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_has_an_unknown_result_is_nobodys() {
    for fault in
        [Error::unavailable("error reading from server: EOF"), Error::new(Kind::Cancelled, "cancelled")]
    {
        let fixture = PullFixture::new();
        fixture.runtime.0.lock().password = Some("right");
        fixture.runtime.0.lock().faults.push_back(fault);
        fixture.fails(&pod("owner", &["right"]), "a:1", Policy::IfNotPresent).await;
        fixture.add_image("a:1");
        let stranger = pod("stranger", &[]);
        assert_eq!(fixture.fails(&stranger, "a:1", Policy::Never).await.0, "ErrImageNeverPull");
        for _ in 0..2 {
            fixture.puller.prune(&[]).await;
        }
        let failed = fixture.fails(&stranger, "a:1", Policy::Never).await;
        assert_eq!(failed.0, "ErrImageNeverPull", "after housekeeping");
        fixture.ensure(&pod("friend", &["right"]), "a:1", Policy::IfNotPresent).await.unwrap();
    }
}

/// A digest, as CRI-O and cri-dockerd returned it until 2026.
const DIGEST: &str =
    "docker.io/library/a@sha256:1111111111111111111111111111111111111111111111111111111111111111";

#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_returned_a_digest_is_not_for_those_who_have_no_credentials() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().image_ref = Some(DIGEST);
    fixture.ensure(&pod("owner", &["right"]), "a:1", Policy::IfNotPresent).await.unwrap();
    let stranger = fixture.fails(&pod("stranger", &[]), "a:1", Policy::Never).await;
    assert_eq!(stranger.0, "ErrImageNeverPull");
    fixture.ensure(&pod("friend", &["right"]), "a:1", Policy::Never).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_returned_no_reference_is_nobodys() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().image_ref = Some("");
    let failed = fixture.fails(&pod("owner", &["right"]), "a:1", Policy::IfNotPresent).await;
    assert_eq!(failed, ("ErrImagePull".to_owned(), "imageRef of image \"a:1\" is not set".to_owned()));
    let stranger = fixture.fails(&pod("stranger", &[]), "a:1", Policy::Never).await;
    assert_eq!(stranger.0, "ErrImageNeverPull");
}

/// The digest says nothing about the id, under which the image is found later.
#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_inspected_after_its_pull_is_nobodys() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().image_ref = Some(DIGEST);
    fixture.runtime.0.lock().slow = SECOND;
    let owner = pod("owner", &["right"]);
    let blind = async {
        while fixture.runtime.0.lock().running == 0 {
            tokio::task::yield_now().await;
        }
        fixture.runtime.0.lock().blind = Some("away");
    };
    let (failed, ()) = tokio::join!(fixture.fails(&owner, "a:1", Policy::IfNotPresent), blind);
    assert_eq!(failed.0, "CreateContainerConfigError");
    fixture.runtime.0.lock().blind = None;
    let stranger = fixture.fails(&pod("stranger", &[]), "a:1", Policy::Never).await;
    assert_eq!(stranger.0, "ErrImageNeverPull");
    fixture.ensure(&owner, "a:1", Policy::IfNotPresent).await.unwrap();
    fixture.ensure(&pod("friend", &["right"]), "a:1", Policy::Never).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_pulled_while_images_cannot_be_inspected() {
    let fixture = PullFixture::new();
    fixture.add_image("a:1");
    fixture.runtime.0.lock().blind = Some("away");
    let failed = fixture.fails(&pod("u", &[]), "a:1", Policy::Always).await;
    assert_eq!((failed.0.as_str(), fixture.pulls()), ("ImageInspectError", 0));
    fixture.runtime.0.lock().blind = None;
    fixture.ensure(&pod("other", &[]), "a:1", Policy::Never).await.unwrap();
}

/// A pod with the policy `Always` is deleted during the pull.
#[tokio::test(start_paused = true)]
async fn a_cancelled_pull_leaves_an_image_that_was_there_before_open_to_all() {
    let mut fixture = PullFixture::new();
    fixture.add_image("a:1");
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().slow = SECOND * 5;
    for attempt in 0..3 {
        let owner = pod(&format!("owner{attempt}"), &["right"]);
        assert!(tokio::time::timeout(SECOND, fixture.ensure(&owner, "a:1", Policy::Always)).await.is_err());
        fixture.ensure(&pod("other", &[]), "a:1", Policy::Never).await.unwrap();
        fixture.restart();
        fixture.ensure(&pod("other", &[]), "a:1", Policy::IfNotPresent).await.unwrap();
    }
    // As in a kubelet, a pull with credentials that succeeds closes it to others.
    fixture.ensure(&pod("owner", &["right"]), "a:1", Policy::Always).await.unwrap();
    fixture.fails(&pod("other", &[]), "a:1", Policy::Never).await;
}

#[tokio::test(start_paused = true)]
async fn records_of_interrupted_pulls_are_removed_and_open_nothing() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.runtime.0.lock().slow = SECOND * 5;
    let owner = pod("owner", &["right"]);
    for number in 0..10 {
        let name = format!("r.example/i{number}:1");
        assert!(tokio::time::timeout(SECOND, fixture.ensure(&owner, &name, Policy::Always)).await.is_err());
    }
    let pulling = fixture.settings.pull_records.as_ref().unwrap().join("pulling");
    let intents = || std::fs::read_dir(&pulling).unwrap().count();
    assert_eq!(intents(), 10);
    std::fs::write(pulling.join("new.0"), "r.example/i").unwrap();
    fixture.puller.prune(&[]).await;
    assert_eq!(intents(), 11, "the runtime may still be adding the images");
    // It has added one.
    fixture.add_image("r.example/i0:1");
    let active = fixture.ensure(&owner, "r.example/i1:1", Policy::Always);
    let prune = async {
        while fixture.runtime.0.lock().running == 0 {
            tokio::task::yield_now().await;
        }
        fixture.puller.prune(&[]).await;
        assert_eq!(intents(), 1, "that of the active pull");
    };
    let (active, ()) = tokio::join!(active, prune);
    active.unwrap();
    assert_eq!(intents(), 0);
    fixture.fails(&pod("stranger", &[]), "r.example/i0:1", Policy::Never).await;
}
