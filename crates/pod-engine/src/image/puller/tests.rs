//! Pulls from a fake registry and runtime, with a paused clock.

mod access;
mod fake_runtime;

use vk_provider::Error;

use self::fake_runtime::{FakeImageRuntime, Pod, pod, rpc};
use super::{super::failed_event, *};
use crate::spec::tests::{RecordedEvents, settings};

const SECOND: Duration = Duration::from_secs(1);

struct PullFixture {
    runtime: Arc<FakeImageRuntime>,
    puller: Arc<Puller>,
    settings: Settings,
    sandbox: SandboxConfig,
    events: RecordedEvents,
    _folder: tempfile::TempDir,
}

impl PullFixture {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl Fn(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings {
            root: folder.path().to_owned(),
            pull_records: Some(folder.path().join("images")),
            ..settings()
        };
        change(&mut settings);
        let runtime = Arc::<FakeImageRuntime>::default();
        let sandbox = sandbox();
        let mut fixture = Self {
            puller: Arc::new(puller(&runtime, &settings)),
            runtime,
            settings,
            sandbox,
            events: RecordedEvents::default(),
            _folder: folder,
        };
        fixture.restart();
        fixture
    }

    /// Another node on the same runtime, with a directory of its own.
    fn other_node(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { root: folder.path().to_owned(), ..self.settings.clone() };
        Self {
            puller: Arc::new(puller(&self.runtime, &settings)),
            runtime: Arc::clone(&self.runtime),
            settings,
            sandbox: sandbox(),
            events: RecordedEvents::default(),
            _folder: folder,
        }
    }

    /// The next process with the same directory.
    fn restart(&mut self) {
        self.puller = Arc::new(puller(&self.runtime, &self.settings));
    }

    async fn ensure(&self, pod: &Pod, image: &str, policy: Policy) -> Result<ResolvedImage, FailureReason> {
        let request = ImageRequest { pod: &pod.0, image, policy, sandbox: &self.sandbox, resolver: pod };
        self.puller.ensure(&request, &self.events.record()).await
    }

    fn remaining_backoff(&self, pod_uid: &str, image: &str) -> Option<Duration> {
        self.puller.backoffs.lock().remaining(pod_uid, image, Instant::now()).map(|(left, _)| left)
    }

    /// Reason and message of an expected failure.
    async fn fails(&self, pod: &Pod, image: &str, policy: Policy) -> (String, String) {
        let failure = self.ensure(pod, image, policy).await.unwrap_err();
        (failure.reason, failure.message)
    }

    fn pulls(&self) -> usize {
        self.runtime.0.lock().pulls.len()
    }

    fn add_image(&self, name: &str) {
        let image = Image { id: format!("id of {name}"), ..Image::default() };
        self.runtime.0.lock().images.insert(name.to_owned(), image);
    }
}

fn puller(runtime: &Arc<FakeImageRuntime>, settings: &Settings) -> Puller {
    Puller::new(Arc::clone(runtime) as _, settings)
}

fn sandbox() -> SandboxConfig {
    let pod = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "p", "namespace": "team", "uid": "u" }, "spec": { "containers": [] },
    }))
    .unwrap();
    let builder = crate::spec::SandboxBuilder {
        pod: &pod,
        attempt: 0,
        settings: &settings(),
        features: &crate::spec::HostFeatures::default(),
        runtime: &crate::backend::RuntimeInfo::default(),
        runtime_class: None,
        host_dns: &crate::backend::Dns::default(),
    };
    builder.build(&|_, _, _| ()).unwrap()
}

const PRESENT: &str =
    "Pulled: Container image \"a:1\" already present on machine and can be accessed by the pod";

#[tokio::test(start_paused = true)]
async fn the_policy_decides_whether_there_is_anything_to_do() {
    for (policy, there, pulls) in [
        (Policy::Always, true, 1),
        (Policy::Always, false, 1),
        (Policy::IfNotPresent, true, 0),
        (Policy::IfNotPresent, false, 1),
        (Policy::Never, true, 0),
    ] {
        let fixture = PullFixture::new();
        if there {
            fixture.add_image("a:1");
        }
        let ready = fixture.ensure(&pod("u1", &[]), "a:1", policy).await.unwrap();
        assert_eq!(fixture.pulls(), pulls, "{policy:?} {there}");
        let told = fixture.events.take();
        if pulls == 0 {
            assert_eq!((ready.image_ref.as_str(), told), ("id of a:1", vec![PRESENT.to_owned()]));
        } else {
            assert_eq!((ready.image_ref.as_str(), ready.image.username.as_str()), ("sha256:a:1", "www"));
            let pulled = "Pulled: Successfully pulled image \"a:1\" in 0s (0s including waiting). Image size: 42 bytes.";
            assert_eq!(told, ["Pulling: Pulling image \"a:1\"", pulled]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_image_that_is_never_pulled_is_an_error() {
    let fixture = PullFixture::new();
    let message = "Container image \"a\" is not present with pull policy of Never";
    let failed = fixture.fails(&pod("u1", &[]), "a", Policy::Never).await;
    assert_eq!(failed, ("ErrImageNeverPull".to_owned(), message.to_owned()));
    assert_eq!(fixture.events.take(), [format!("ErrImageNeverPull: {message}")]);
    assert_eq!(fixture.pulls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_none_is_told_and_asks_nobody() {
    let fixture = PullFixture::new();
    let message = "Failed to apply default image tag \"A b\": couldn't parse image name \"A b\": invalid reference format: repository \
        name (library/A b) must be lowercase";
    let failed = fixture.fails(&pod("u1", &[]), "A b", Policy::Always).await;
    assert_eq!(failed, ("InvalidImageName".to_owned(), message.to_owned()));
    assert_eq!(fixture.events.take(), [format!("InspectFailed: {message}")]);
    assert_eq!(fixture.pulls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_cannot_look_at_images_is_told() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().blind = Some("no connection");
    let message = "Failed to inspect image \"\": rpc error: code = Unavailable desc = no connection";
    let failed = fixture.fails(&pod("u1", &[]), "a", Policy::IfNotPresent).await;
    assert_eq!(failed, ("ImageInspectError".to_owned(), message.to_owned()));
    assert_eq!(fixture.events.take(), [format!("InspectFailed: {message}")]);
    // After a pull the user of the image must be known. A runtime that records access itself is not asked before it.
    let fixture = PullFixture::with(|settings| settings.pull_records = None);
    fixture.runtime.0.lock().blind = Some("no connection");
    let failure = fixture.ensure(&pod("u1", &[]), "a", Policy::Always).await.unwrap_err();
    let expected = ("CreateContainerConfigError", "no connection");
    assert_eq!((failure.reason.as_str(), failure.message.as_str()), expected);
    assert_eq!(failed_event(&failure).2, "Error: no connection");
}

#[tokio::test(start_paused = true)]
async fn an_image_without_a_tag_is_pulled_with_one_and_named_without() {
    let fixture = PullFixture::new();
    let ready = fixture.ensure(&pod("u1", &[]), "a", Policy::Always).await.unwrap();
    assert_eq!(ready.image_ref, "sha256:a:latest");
    assert_eq!(fixture.events.take()[0], "Pulling: Pulling image \"a\"");
}

#[tokio::test(start_paused = true)]
async fn waits_double_from_ten_seconds_to_five_minutes_and_repeat_the_last_real_error() {
    let fixture = PullFixture::new();
    let pod = pod("u1", &[]);
    let error = "rpc error: code = NotFound desc = no such image";
    for wait in [10, 20, 40, 80, 160, 300, 300] {
        fixture.runtime.0.lock().faults.push_back(rpc("NotFound", "no such image"));
        let failed = fixture.fails(&pod, "a", Policy::Always).await;
        assert_eq!(failed, ("ErrImagePull".to_owned(), error.to_owned()));
        let told = fixture.events.take();
        assert_eq!(
            told,
            [
                "Pulling: Pulling image \"a\"".to_owned(),
                format!("Failed: Failed to pull image \"a\": {error}")
            ]
        );
        let pulls = fixture.pulls();
        assert_eq!(fixture.remaining_backoff("u1", "a"), Some(SECOND * wait));
        tokio::time::advance((SECOND * wait).saturating_sub(Duration::from_millis(1))).await;
        let message = format!("Back-off pulling image \"a\": ErrImagePull: {error}");
        for _ in 0..2 {
            assert_eq!(
                fixture.fails(&pod, "a", Policy::Always).await,
                ("ImagePullBackOff".to_owned(), message.clone())
            );
            assert_eq!(fixture.events.take(), ["BackOff: Back-off pulling image \"a\""]);
        }
        assert_eq!(fixture.pulls(), pulls);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(fixture.remaining_backoff("u1", "a"), None);
    }
    // After twice the longest back-off the back-off starts again.
    tokio::time::advance(SECOND * 301).await;
    fixture.runtime.0.lock().faults.push_back(rpc("NotFound", "no such image"));
    fixture.fails(&pod, "a", Policy::Always).await;
    assert_eq!(fixture.remaining_backoff("u1", "a"), Some(SECOND * 10));
}

#[tokio::test(start_paused = true)]
async fn one_pods_wait_is_no_other_pods_and_a_gone_pod_has_none() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().faults.push_back(rpc("NotFound", "x"));
    fixture.fails(&pod("u1", &[]), "a", Policy::Always).await;
    fixture.ensure(&pod("u2", &[]), "a", Policy::Always).await.unwrap();
    fixture.ensure(&pod("u1", &[]), "b", Policy::Always).await.unwrap();
    fixture.fails(&pod("u1", &[]), "a", Policy::Always).await;
    fixture.puller.forget("u1");
    fixture.ensure(&pod("u1", &[]), "a", Policy::Always).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_present_image_serves_while_a_pull_would_have_to_wait() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().faults.push_back(rpc("NotFound", "x"));
    fixture.fails(&pod("u1", &[]), "a:1", Policy::IfNotPresent).await;
    fixture.add_image("a:1");
    fixture.ensure(&pod("u1", &[]), "a:1", Policy::IfNotPresent).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_causes_that_a_runtime_names_have_reasons_of_their_own_and_a_code_that_says_nothing_is_left_out()
{
    for (error, reason, message) in [
        (
            rpc("Unknown", "RegistryUnavailable: pull: 503"),
            "RegistryUnavailable",
            "image pull failed for a because the registry is unavailable: pull: 503",
        ),
        (
            rpc("Unknown", "SignatureValidationFailed"),
            "SignatureValidationFailed",
            "image pull failed for a because the signature validation failed",
        ),
        (rpc("Unknown", "odd"), "ErrImagePull", "odd"),
        (Error::internal("no code at all"), "ErrImagePull", "no code at all"),
    ] {
        let fixture = PullFixture::new();
        fixture.runtime.0.lock().faults.push_back(error);
        let failed = fixture.fails(&pod("u1", &[]), "a", Policy::Always).await;
        assert_eq!(failed, (reason.to_owned(), message.to_owned()));
        let (_, again) = fixture.fails(&pod("u1", &[]), "a", Policy::Always).await;
        assert_eq!(again, format!("Back-off pulling image \"a\": {reason}: {message}"));
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_one_after_the_other() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.ensure(&pod("u1", &["wrong", "right", "more"]), "a", Policy::Always).await.unwrap();
    let tried = |fixture: &PullFixture| std::mem::take(&mut fixture.runtime.0.lock().pulls);
    assert_eq!(tried(&fixture), [Some("wrong".to_owned()), Some("right".to_owned())]);
    // Equal errors are reported once; wrong credentials do not cause an anonymous pull.
    let failed = fixture.fails(&pod("u2", &["wrong", "bad"]), "a", Policy::Always).await;
    assert_eq!(failed, ("ErrImagePull".to_owned(), "pull access denied".to_owned()));
    assert_eq!(tried(&fixture), [Some("wrong".to_owned()), Some("bad".to_owned())]);
    fixture.runtime.0.lock().faults.push_back(rpc("NotFound", "other"));
    let failed = fixture.fails(&pod("u3", &["wrong", "bad"]), "a", Policy::Always).await;
    assert_eq!(failed.1, "[rpc error: code = NotFound desc = other, pull access denied]");
    tried(&fixture);
    fixture.runtime.0.lock().password = None;
    fixture.ensure(&pod("u4", &[]), "a", Policy::Always).await.unwrap();
    assert_eq!(tried(&fixture), [None]);
}

#[tokio::test(start_paused = true)]
async fn one_pull_serves_all_who_wait_for_it() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().slow = SECOND * 3;
    let pods: Vec<Pod> = (0..10).map(|number| pod(&format!("u{number}"), &["pw"])).collect();
    let all = pods.iter().map(|pod| fixture.ensure(pod, "a", Policy::Always));
    let all = futures::future::join_all(all).await;
    assert!(all.iter().all(|ready| ready.as_ref().unwrap().image_ref == "sha256:a:latest"));
    assert_eq!(fixture.pulls(), 1);
    let told = fixture.events.take();
    let pulled =
        "Pulled: Successfully pulled image \"a\" in 3s (3s including waiting). Image size: 42 bytes.";
    assert_eq!(told.iter().filter(|told| *told == pulled).count(), 10);
    // A request after the end of the pull starts a new one.
    fixture.ensure(&pods[0], "a", Policy::Always).await.unwrap();
    assert_eq!(fixture.pulls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_everybodys_who_waited_and_each_has_its_own_wait() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().slow = SECOND;
    fixture.runtime.0.lock().faults.push_back(rpc("NotFound", "x"));
    let (one, two) = (pod("u1", &[]), pod("u2", &[]));
    let (first, second) =
        tokio::join!(fixture.fails(&one, "a", Policy::Always), fixture.fails(&two, "a", Policy::Always));
    assert_eq!((first.0.as_str(), first == second, fixture.pulls()), ("ErrImagePull", true, 1));
    assert!(fixture.remaining_backoff("u1", "a").is_some() && fixture.remaining_backoff("u2", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn other_credentials_or_another_image_are_another_pull() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().slow = SECOND;
    let (one, two) = (pod("u1", &["a"]), pod("u2", &["b"]));
    let (a, b, c) = tokio::join!(
        fixture.ensure(&one, "a", Policy::Always),
        fixture.ensure(&two, "a", Policy::Always),
        fixture.ensure(&one, "b", Policy::Always)
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!((fixture.pulls(), fixture.runtime.0.lock().most), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_pull_goes_on_when_the_one_who_began_it_has_gone() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().slow = SECOND * 10;
    let (one, two) = (pod("u1", &[]), pod("u2", &[]));
    let first = tokio::time::timeout(SECOND * 2, fixture.ensure(&one, "a", Policy::Always));
    let (first, second) = tokio::join!(first, fixture.ensure(&two, "a", Policy::Always));
    assert!(first.is_err(), "it was dropped");
    assert!(second.is_ok());
    assert_eq!(fixture.pulls(), 1);
    // When all callers are gone the pull is cancelled, and the next request starts a new one.
    assert!(tokio::time::timeout(SECOND, fixture.ensure(&one, "b", Policy::Always)).await.is_err());
    assert_eq!(fixture.runtime.0.lock().running, 0);
    fixture.ensure(&one, "b", Policy::Always).await.unwrap();
    assert_eq!(fixture.pulls(), 3);
}

#[tokio::test(start_paused = true)]
async fn no_more_pulls_run_at_once_than_allowed_and_the_wait_for_a_turn_is_told() {
    let fixture = PullFixture::with(|settings| settings.parallel_pulls = Some(2));
    fixture.runtime.0.lock().slow = SECOND;
    let pods: Vec<Pod> = (0..6).map(|number| pod(&format!("u{number}"), &[])).collect();
    let names: Vec<String> = (0..6).map(|number| format!("i{number}")).collect();
    let all = pods.iter().zip(&names).map(|(pod, image)| fixture.ensure(pod, image, Policy::Always));
    assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!((fixture.pulls(), fixture.runtime.0.lock().most), (6, 2));
    let last = "Pulled: Successfully pulled image \"i5\" in 1s (3s including waiting). Image size: 42 bytes.";
    assert!(fixture.events.take().contains(&last.to_owned()));
}

/// One tenant's slow registry blocks no other tenant's pull.
#[tokio::test(start_paused = true)]
async fn a_slow_registry_does_not_delay_pulls_from_another_one() {
    let fixture = PullFixture::with(|settings| settings.parallel_pulls = Some(2));
    fixture.runtime.0.lock().slow = SECOND * 3600;
    let slow: Vec<Pod> = (0..6).map(|number| pod(&format!("slow{number}"), &[])).collect();
    let names: Vec<String> = (0..6).map(|number| format!("slow.example/i{number}")).collect();
    let pulls = slow.iter().zip(&names).map(|(pod, image)| fixture.ensure(pod, image, Policy::Always));
    let pulls = futures::future::join_all(pulls);
    let quick = async {
        while fixture.pulls() < 2 {
            tokio::task::yield_now().await;
        }
        fixture.runtime.0.lock().slow = SECOND;
        let own = pod("own", &[]);
        tokio::time::timeout(SECOND * 60, fixture.ensure(&own, "quick.example/a", Policy::Always)).await
    };
    tokio::select! {
        _ = pulls => panic!("the slow pulls are quicker than the quick one"),
        quick = quick => assert!(quick.expect("within a minute").is_ok()),
    }
}

/// A tenant with a wildcard in DNS has any number of registries.
#[tokio::test(start_paused = true)]
async fn a_tenant_with_many_slow_registries_leaves_pulls_to_others() {
    let fixture = PullFixture::with(|settings| settings.parallel_pulls = Some(2));
    fixture.runtime.0.lock().slow = SECOND * 3600;
    let names: Vec<String> = (0..100).map(|number| format!("r{number}.evil.example/a")).collect();
    let evil = |uid: String| Pod(PodRef::new("evil", &*uid, &*uid), Vec::new());
    let slow: Vec<Pod> = (0..=100).map(|number| evil(format!("evil{number}"))).collect();
    // The last one is an image that others need, too.
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["quick.example/a"]).collect();
    let pulls = slow.iter().zip(names).map(|(pod, image)| fixture.ensure(pod, image, Policy::Always));
    let pulls = futures::future::join_all(pulls);
    let quick = async {
        let mut begun = 0;
        while fixture.pulls() < 4 || begun < 101 {
            begun += fixture.events.take().len();
            tokio::task::yield_now().await;
        }
        assert_eq!(fixture.runtime.0.lock().running, 4, "of one namespace");
        fixture.runtime.0.lock().slow = SECOND;
        let own = pod("own", &[]);
        tokio::time::timeout(SECOND * 60, fixture.ensure(&own, "quick.example/a", Policy::Always)).await
    };
    tokio::select! {
        _ = pulls => panic!("the slow pulls are quicker than the quick one"),
        quick = quick => assert!(quick.expect("within a minute").is_ok()),
    }
}

#[tokio::test(start_paused = true)]
async fn records_follow_the_images_that_are_there() {
    let fixture = PullFixture::new();
    fixture.runtime.0.lock().password = Some("right");
    fixture.ensure(&pod("owner", &["right"]), "a:1", Policy::IfNotPresent).await.unwrap();
    // The image was removed and added again externally.
    for _ in 0..2 {
        fixture.puller.prune(&[]).await;
    }
    fixture.ensure(&pod("other", &[]), "a:1", Policy::IfNotPresent).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_cannot_be_written_is_told_and_nothing_is_pulled() {
    let fixture = PullFixture::with(|settings| {
        std::fs::write(settings.root.join("images"), "in the way").unwrap();
    });
    let (reason, message) = fixture.fails(&pod("u1", &[]), "a", Policy::Always).await;
    assert_eq!(reason, "ErrImagePull");
    assert!(
        message.starts_with("Failed to record image pull intent for container image \"a\": "),
        "{message}"
    );
    assert_eq!(fixture.pulls(), 0);
}
