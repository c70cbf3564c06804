//! A status that the API server refuses.

use super::*;

fn refusal(fields: &[&str]) -> ApiError {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    ApiError { fields, failed_validation: true, ..ApiError::new(ApiKind::Invalid, "no") }
}

fn events(effects: &[PodEffect]) -> Vec<&str> {
    let refusals = effects.iter().filter_map(|effect| match effect {
        PodEffect::RecordEvent(record) if record.reason == "StatusRefused" => Some(record.message.as_str()),
        _ => None,
    });
    refusals.collect()
}

fn removes(effect: &PodEffect) -> bool {
    matches!(effect, PodEffect::Write { write: PodWrite::Remove, .. })
}

fn sent(patch: &StatusPatch) -> Value {
    serde_json::to_value(patch).unwrap()["status"].take()
}

/// A pod that is being deleted and has stopped, while its last status is written.
fn stopped() -> Fixture {
    let mut fixture = Fixture::created(Policy::default());
    let patch = write_of(&fixture.was_read(Ok(running()))).expect("a write");
    let stored = fixture.store(&patch);
    fixture.wrote(Ok(Some(Arc::clone(&stored))));
    let mut terminating = Pod::clone(&stored);
    terminating.metadata.resource_version = Some("200".to_owned());
    terminating.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1_800_000_030).unwrap()));
    terminating.metadata.deletion_grace_period_seconds = Some(30);
    fixture.handle(Event::Applied(Arc::new(terminating)));
    fixture.called(Ok(()));
    let ended = report("Failed", &json!({"terminated": {"exitCode": 137}}));
    assert!(write_of(&fixture.handle(Event::StatusReported(Box::new(ended)))).is_some());
    fixture
}

#[test]
fn what_the_api_server_names_is_left_out_and_told_and_the_rest_is_written() {
    let mut fixture = Fixture::created(Policy::default());
    let patch = write_of(&fixture.was_read(Ok(running()))).expect("a write");
    assert_eq!(sent(&patch)["podIP"], "10.9.8.7");
    let effects = fixture.wrote(Err(refusal(&["status.podIPs"])));
    assert_eq!(
        events(&effects),
        ["the API server refuses the status of the pod, status.podIPs is left out: no"]
    );
    let patch = write_of(&fixture.tick()).expect("another write");
    assert!(fixture.now < Duration::from_secs(1), "{:?}", fixture.now);
    let body = sent(&patch);
    assert_eq!((body.get("podIP"), body.get("podIPs")), (None, None), "what is stored stays: {body}");
    assert_eq!((&body["phase"], &body["hostIP"]), (&json!("Running"), &Value::Null));
    let stored = fixture.store(&patch);
    assert_eq!(write_of(&fixture.wrote(Ok(Some(stored)))), None, "nothing more to write");
    // The same again is not tried again; another address is.
    assert_eq!(write_of(&fixture.handle(Event::StatusReported(Box::new(running())))), None);
    let moved = PodStatus { pod_ip: Some("10.9.8.8".to_owned()), ..running() };
    let patch = write_of(&fixture.handle(Event::StatusReported(Box::new(moved)))).expect("a write");
    assert_eq!(sent(&patch)["podIP"], "10.9.8.8");
}

#[test]
fn conditions_that_are_refused_are_not_sent_again_when_only_time_has_passed() {
    let mut fixture = Fixture::created(Policy::default());
    fixture.was_read(Ok(running()));
    fixture.wrote(Err(refusal(&["status.conditions[2].type"])));
    fixture.now += Duration::from_mins(1);
    let patch = write_of(&fixture.handle(Event::Tick)).expect("another write");
    assert_eq!(sent(&patch).get("conditions"), None);
    let stored = fixture.store(&patch);
    assert_eq!(write_of(&fixture.wrote(Ok(Some(stored)))), None);
    fixture.now += Duration::from_mins(1);
    assert_eq!(write_of(&fixture.handle(Event::Tick)), None);
}

#[test]
fn annotations_of_the_provider_that_are_refused_are_dropped() {
    let mut fixture = Fixture::created(Policy::default());
    fixture.handle(Event::Annotations([("no such key!".to_owned(), Some("x".to_owned()))].into()));
    assert!(write_of(&fixture.was_read(Ok(running()))).is_some());
    let effects = fixture.wrote(Err(refusal(&["metadata.annotations"])));
    assert!(events(&effects)[0].contains("the provider's annotations is left out"), "{effects:?}");
    let patch = write_of(&fixture.tick()).expect("another write");
    assert!(patch.annotations().is_empty());
    assert_eq!(patch.status().phase.as_deref(), Some("Running"));
}

#[test]
fn a_status_that_is_refused_three_times_does_not_keep_a_pod_that_is_to_be_removed() {
    let mut fixture = stopped();
    let effects = fixture.wrote(Err(refusal(&[])));
    assert_eq!(events(&effects), ["the API server refuses the status of the pod, trying again: no"]);
    assert!(!has(&effects, removes), "one answer gives up no exit codes: {effects:?}");
    assert!(write_of(&fixture.tick()).is_some());
    fixture.wrote(Err(refusal(&[])));
    assert!(write_of(&fixture.tick()).is_some());
    let effects = fixture.wrote(Err(refusal(&[])));
    assert_eq!(
        events(&effects),
        ["the API server refuses the status of the pod, the pod is removed without it: no"]
    );
    assert!(has(&effects, removes), "{effects:?}");
}

#[test]
fn a_pod_leaves_with_what_the_api_server_accepts_of_its_last_status() {
    let mut fixture = stopped();
    fixture.wrote(Err(refusal(&["status.containerStatuses[0].user.linux.uid"])));
    let patch = write_of(&fixture.tick()).expect("another write");
    let body = sent(&patch);
    assert_eq!((&body["phase"], body.get("containerStatuses")), (&json!("Failed"), None));
    // Whatever comes next: each refusal leaves out more, or nothing is left to leave out.
    let rest = ["status.phase", "status.containerStatuses[0].user.linux.uid"];
    fixture.wrote(Err(refusal(&rest)));
    for _ in 0..2 {
        assert!(write_of(&fixture.tick()).is_some(), "another attempt");
        fixture.wrote(Err(refusal(&rest)));
    }
    assert!(fixture.write.is_some(), "the removal follows");
}

#[test]
fn a_last_status_is_not_given_up_because_of_an_answer_that_is_not_from_validation() {
    let mut fixture = stopped();
    // A 400 of a proxy, as long as that lasts.
    let fields = vec!["status.containerStatuses[0]".to_owned()];
    let bad_request = ApiError { fields, ..ApiError::new(ApiKind::Invalid, "bad request") };
    for _ in 0..20 {
        let effects = fixture.wrote(Err(bad_request.clone()));
        assert!(!has(&effects, removes), "{effects:?}");
        // There may be other deadlines before.
        let patch = (0..10).find_map(|_| write_of(&fixture.tick())).expect("another attempt");
        assert_eq!(sent(&patch)["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    }
    let mut last = fixture.wrote(Err(refusal(&[])));
    for _ in 0..2 {
        assert!(!has(&last, removes), "the refusals of validation count from here: {last:?}");
        assert!((0..10).any(|_| write_of(&fixture.tick()).is_some()));
        last = fixture.wrote(Err(refusal(&[])));
    }
    assert!(has(&last, removes), "{last:?}");
}

#[test]
fn another_last_status_has_attempts_of_its_own() {
    let mut fixture = stopped();
    for _ in 0..2 {
        fixture.wrote(Err(refusal(&[])));
        // The time of the next attempt is in its conditions: that makes it no other status.
        fixture.now += Duration::from_mins(1);
        assert!(write_of(&fixture.handle(Event::Tick)).is_some());
    }
    let ended = report("Failed", &json!({"terminated": {"exitCode": 3}}));
    assert!(write_of(&fixture.handle(Event::StatusReported(Box::new(ended)))).is_none(), "one at a time");
    let effects = fixture.wrote(Err(refusal(&[])));
    assert!(!has(&effects, removes), "the newer exit code was never sent: {effects:?}");
    let patch =
        write_of(&effects).or_else(|| write_of(&fixture.tick())).expect("a write of the newer status");
    assert_eq!(sent(&patch)["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
}
