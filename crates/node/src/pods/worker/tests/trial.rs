//! A pod on trial.

use vk_provider::placement::{REFUSED_REASON, SCHEDULED_CONDITION, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

use super::*;

/// A pod that is on trial for a minute.
fn on_trial() -> Arc<Pod> {
    let until = Timestamp::from_second(1_800_000_060).unwrap();
    let mut pod = Pod::clone(&pod());
    pod.spec.as_mut().unwrap().node_name = None;
    pod.metadata.labels = Some([(TRIAL_LABEL.to_owned(), "vk".to_owned())].into());
    pod.metadata.annotations = Some([(TRIAL_UNTIL_ANNOTATION.to_owned(), until.to_string())].into());
    let placed = json!([{"type": "multicluster.virtual-kubelet.io/Placed", "status": "Unknown", "reason": "OnTrial",
        "lastTransitionTime": "2027-01-15T08:00:00Z"}]);
    pod.status = serde_json::from_value(json!({"conditions": placed})).unwrap();
    Arc::new(pod)
}

/// The reason and the message of the condition `Scheduled` that is written after the provider's answer to the create.
fn said_after(failure: ProviderFailure) -> (String, String) {
    let mut fixture = Fixture::new();
    assert!(has(&fixture.handle(Event::Applied(on_trial())), creates));
    let effects = fixture.called(Err(failure));
    let patch = effects.iter().find_map(|effect| match effect {
        PodEffect::Write { write: PodWrite::Trial(patch), .. } => {
            Some(serde_json::to_value(&**patch).unwrap())
        }
        _ => None,
    });
    let patch = patch.expect("a write");
    let conditions = patch["status"]["conditions"].as_array().expect("conditions");
    let said = conditions.iter().find(|one| one["type"] == SCHEDULED_CONDITION).expect("the condition");
    assert_eq!(said["status"], "False");
    (said["reason"].as_str().unwrap().to_owned(), said["message"].as_str().unwrap().to_owned())
}

/// Placement tries the next node at once, and does not wait until its patience is over.
#[test]
fn what_only_others_can_change_is_a_refusal_and_what_passes_by_itself_is_none() {
    let said = |kind: Kind| said_after(ProviderFailure { kind, message: "no".to_owned() });
    let refused = (REFUSED_REASON.to_owned(), "no".to_owned());
    for kind in [Kind::Denied, Kind::Exhausted, Kind::Blocked("LowerQuotaExceeded"), Kind::Invalid] {
        let (reason, message) = said(kind.clone());
        assert_eq!(reason, refused.0, "{kind}");
        assert!(message.contains(&refused.1), "{kind}: {message}");
    }
    for kind in [Kind::Unavailable, Kind::Throttled { after: None }, Kind::Internal] {
        assert_eq!(said(kind.clone()), ("ProviderFailed".to_owned(), "no".to_owned()), "{kind}");
    }
}

/// A provider knows by that not to take it for one that was deleted by force.
#[test]
fn a_pod_whose_trial_is_over_is_stopped_as_one_that_is_not_bound() {
    let mut fixture = Fixture::new();
    assert!(has(&fixture.handle(Event::Applied(on_trial())), creates));
    fixture.called(Ok(()));
    fixture.was_read(Ok(running()));
    fixture.now = Duration::from_secs(61);
    let mut graces = Vec::new();
    let mut effects = fixture.handle(Event::Tick);
    while graces.len() < 2 {
        for effect in &effects {
            if let PodEffect::CallProvider { call: ProviderCall::Delete { last_known, grace }, .. } = effect {
                assert!(last_known.as_ref().unwrap().spec.as_ref().unwrap().node_name.is_none());
                graces.push(grace.as_secs());
            }
        }
        effects = if fixture.call.is_some() { fixture.called(Ok(())) } else { fixture.tick() };
    }
    assert_eq!(graces, [30, 0], "at once when it is overdue: the provider waits for the end all the same");
}
