//! Tests of the reconciler as a whole; the simulation is the largest of them.

mod simulation;

use jiff::Timestamp;
use rand::SeedableRng as _;
use serde_json::json;

use super::{effect::ProviderCall, *};

struct Fixture {
    reconciler: PodReconciler,
    now: Duration,
}

fn pod(uid: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "resourceVersion": "5"},
        "spec": {"nodeName": "vk", "containers": [{"name": "main", "image": "example.com/app:1"}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

impl Fixture {
    fn new() -> Self {
        let mut reconciler = PodReconciler::new("vk".to_owned(), Policy::default(), StdRng::seed_from_u64(1));
        reconciler.set_available_permits(10);
        Self { reconciler, now: Duration::ZERO }
    }

    fn handle(&mut self, input: Input) -> Vec<PodEffect> {
        let mut effects = Vec::new();
        let now = Now { elapsed: self.now, wall: Timestamp::from_second(1_800_000_000).unwrap() + self.now };
        self.reconciler.handle(now, input, &mut effects);
        effects
    }

    /// The watch has listed these pods.
    fn list(&mut self, uids: &[&str]) -> Vec<PodEffect> {
        self.handle(Input::Watch(PodWatchEvent::Restarted));
        for uid in uids {
            self.handle(Input::Watch(PodWatchEvent::Applied(pod(uid))));
        }
        self.handle(Input::Watch(PodWatchEvent::Listed))
    }

    fn complete(&mut self, id: EffectId, uid: Option<&str>, result: EffectResult) -> Vec<PodEffect> {
        self.handle(Input::Completed(Completion { id, uid: uid.map(Arc::from), result }))
    }
}

fn list_of(effects: &[PodEffect]) -> Option<EffectId> {
    effects.iter().find_map(|effect| match effect {
        PodEffect::ListProviderPods { id } => Some(*id),
        _ => None,
    })
}

fn calls_of(effects: &[PodEffect]) -> Vec<(EffectId, Arc<str>)> {
    let call = |effect: &PodEffect| match effect {
        PodEffect::CallProvider { id, pod, .. } => Some((*id, Arc::clone(&pod.uid))),
        _ => None,
    };
    effects.iter().filter_map(call).collect()
}

#[test]
fn nothing_is_created_before_both_sides_were_listed() {
    let mut fixture = Fixture::new();
    assert_eq!(list_of(&fixture.handle(Input::Tick)), None, "the API server's pods come first");
    let effects = fixture.list(&["u1"]);
    let list = list_of(&effects).expect("a list of the provider's pods");
    assert!(calls_of(&effects).is_empty());
    let effects = fixture.complete(list, None, EffectResult::ProviderPods(Ok(Vec::new())));
    assert_eq!(calls_of(&effects).len(), 1, "{effects:?}");
}

#[test]
fn an_answer_counts_once_and_only_for_the_effect_with_its_id() {
    let mut fixture = Fixture::new();
    let list = list_of(&fixture.list(&["u1"])).expect("a list of the provider's pods");
    let effects = fixture.complete(list, None, EffectResult::ProviderPods(Ok(Vec::new())));
    let (create, _) = calls_of(&effects)[0].clone();
    let again = fixture.complete(list, None, EffectResult::ProviderPods(Ok(Vec::new())));
    assert!(again.is_empty(), "{again:?}");
    let other = fixture.complete(list, Some("u1"), EffectResult::Call(Ok(())));
    assert!(other.is_empty(), "{other:?}");
    let accepted = fixture.complete(create, Some("u1"), EffectResult::Call(Ok(())));
    assert!(accepted.iter().any(|effect| matches!(effect, PodEffect::ReadStatus { .. })), "{accepted:?}");
    let again = fixture.complete(create, Some("u1"), EffectResult::Call(Ok(())));
    assert!(again.is_empty(), "{again:?}");
}

#[test]
fn a_pod_that_a_new_list_lacks_is_stopped_and_its_worker_ends() {
    let mut fixture = Fixture::new();
    let list = list_of(&fixture.list(&["u1"])).expect("a list of the provider's pods");
    fixture.complete(list, None, EffectResult::ProviderPods(Ok(Vec::new())));
    let effects = fixture.list(&[]);
    assert!(effects.iter().any(|effect| matches!(effect, PodEffect::Cancel(_))), "{effects:?}");
    let (delete, uid) = calls_of(&effects)[0].clone();
    assert_eq!(&*uid, "u1");
    let gone =
        ProviderFailure { kind: vk_provider::error::Kind::NotFound, message: "no such pod".to_owned() };
    fixture.complete(delete, Some("u1"), EffectResult::Call(Err(gone)));
    assert!(fixture.reconciler.uids().is_empty());
    assert_eq!(fixture.reconciler.timers.len(), 0);
}

/// The label of a trial may go before the pod is bound, and then it may be bound here all the same.
#[test]
fn an_orphan_that_is_bound_here_while_it_is_stopped_is_created_again_after_the_stop() {
    let mut fixture = Fixture::new();
    let mut effects = fixture.list(&[]);
    let mut unbound = Pod::clone(&pod("u1"));
    unbound.spec.as_mut().unwrap().node_name = None;
    for _ in 0..2 {
        let list = list_of(&effects).expect("a list of the provider's pods");
        let (pod, node) = (PodRef::new("default", "u1", "u1"), Some("vk".to_owned()));
        let there = vec![ObservedPod { pod, node, status: PodStatus::default() }];
        let reads = fixture.complete(list, None, EffectResult::ProviderPods(Ok(there)));
        let [PodEffect::ReadPod { id, .. }] = *reads else { panic!("{reads:?}") };
        effects = fixture.complete(id, Some("u1"), EffectResult::Pod(Ok(Some(Box::new(unbound.clone())))));
        if calls_of(&effects).is_empty() {
            fixture.now += Duration::from_mins(2);
            effects = fixture.handle(Input::Tick);
        }
    }
    let is_delete = |effect: &PodEffect| {
        matches!(effect, PodEffect::CallProvider { call: ProviderCall::Delete { .. }, .. })
    };
    assert!(effects.iter().any(is_delete), "{effects:?}");
    let (delete, _) = calls_of(&effects)[0].clone();
    let bound = fixture.handle(Input::Watch(PodWatchEvent::Applied(pod("u1"))));
    assert!(calls_of(&bound).is_empty(), "one call at a time: {bound:?}");
    let stopped = fixture.complete(delete, Some("u1"), EffectResult::Call(Ok(())));
    let is_create =
        |effect: &PodEffect| matches!(effect, PodEffect::CallProvider { call: ProviderCall::Create(_), .. });
    assert!(stopped.iter().any(is_create), "{stopped:?}");
}
