//! Tests against a fake signer that signs, rejects or delays requests, in paused time.

mod fake_signer;

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use vk_supervisor::Clock;

use self::fake_signer::{FakeSigner, Policy};
use super::*;
use crate::Client;

const HOUR: Duration = Duration::from_hours(1);

struct Harness {
    folder: tempfile::TempDir,
    signer: FakeSigner,
    clock: Clock,
    spec: watch::Sender<CertificateSpec>,
}

impl Harness {
    fn new(spec: CertificateSpec) -> Self {
        let start: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let clock = Clock::following_tokio(start);
        Self {
            folder: tempfile::tempdir().unwrap(),
            signer: FakeSigner::new(clock.clone(), HOUR),
            clock,
            spec: watch::Sender::new(spec),
        }
    }

    fn store(&self) -> CertificateStore {
        CertificateStore::new(self.folder.path().join("pki/vk.pem"))
    }

    fn client(&self) -> Client {
        self.signer.client()
    }

    fn renewer(&self) -> Renewer {
        Renewer::new(self.client(), self.spec.subscribe(), self.store(), self.clock.clone())
    }

    /// Runs a renewer in the background.
    fn run(&self) -> (watch::Receiver<RenewalStatus>, tokio::task::JoinSet<()>) {
        let renewer = self.renewer();
        let status = renewer.status();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(renewer.run());
        (status, tasks)
    }
}

fn serving(addresses: &[&str]) -> CertificateSpec {
    CertificateSpec::serving("vk", ["vk".to_owned()], addresses.iter().map(|text| text.parse().unwrap()))
}

async fn seen(
    status: &mut watch::Receiver<RenewalStatus>,
    what: impl FnMut(&RenewalStatus) -> bool,
) -> RenewalStatus {
    // Paused time advances while all tasks wait.
    tokio::time::timeout(Duration::from_hours(48), status.wait_for(what)).await.unwrap().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_requested_stored_and_loaded_again() {
    let harness = Harness::new(serving(&["10.0.0.1", "fd00::1"]));
    let (mut status, tasks) = harness.run();
    let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    assert_eq!(first.mismatch(&harness.spec.borrow()), None);
    assert_eq!(harness.signer.requests().len(), 1);
    let asked = harness.signer.requests().remove(0);
    assert_eq!(asked.spec.signer_name, "kubernetes.io/kubelet-serving");
    assert_eq!(asked.spec.usages.unwrap(), ["digital signature", "server auth"]);
    drop(tasks);

    let path = harness.store().path().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "only the certificate is left");

    // The next process uses it at once and requests nothing.
    let status = harness.renewer().status();
    assert_eq!(status.borrow().current.as_ref(), Some(&first));
    let (_status, _tasks) = harness.run();
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(harness.signer.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_after_70_to_90_per_cent_of_its_lifetime() {
    let harness = Harness::new(CertificateSpec::client("vk"));
    let (mut status, _tasks) = harness.run();
    let mut last = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    let mut parts = Vec::new();
    for _ in 0..20 {
        let next = seen(&mut status, |now| now.current.as_ref().is_some_and(|pair| *pair != last)).await;
        let lifetime = last.not_after().duration_since(last.not_before()).as_secs_f64();
        parts.push(harness.clock.now().duration_since(last.not_before()).as_secs_f64() / lifetime);
        last = next.current.unwrap();
    }
    // Up to ten seconds pass until the clock is read, and one or two until the certificate is issued.
    assert!(parts.iter().all(|part| (0.7..=0.905).contains(part)), "{parts:?}");
    let (least, most) =
        (parts.iter().copied().fold(1.0, f64::min), parts.iter().copied().fold(0.0, f64::max));
    assert!(most - least > 0.02, "renewals are spread: {parts:?}");
    assert_eq!(harness.store().load().unwrap(), Some(last));
}

#[tokio::test(start_paused = true)]
async fn the_old_certificate_is_used_while_a_new_one_is_pending_until_it_expires() {
    let harness = Harness::new(serving(&["10.0.0.1"]));
    let (mut status, _tasks) = harness.run();
    let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    harness.signer.set_policy(Policy::Wait);
    let waiting = seen(&mut status, |status| status.pending.is_some()).await;
    assert_eq!(waiting.current.as_ref(), Some(&first));
    assert!(harness.clock.now() < first.not_after());
    let expired = seen(&mut status, |status| status.current.is_none()).await;
    assert!(expired.pending.is_some() && harness.clock.now() >= first.not_after());
    harness.signer.set_policy(Policy::Sign);
    let renewed = seen(&mut status, |status| status.current.is_some()).await;
    assert_eq!((renewed.pending, renewed.last_error), (None, None));
    assert_eq!(harness.signer.requests().len(), 2, "one request for the whole wait");
}

#[tokio::test(start_paused = true)]
async fn a_new_address_needs_a_new_certificate_and_the_old_one_is_used_until_then() {
    let harness = Harness::new(serving(&["10.0.0.1"]));
    let (mut status, _tasks) = harness.run();
    let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    harness.signer.set_policy(Policy::Wait);
    harness.spec.send_replace(serving(&["10.0.0.2"]));
    let waiting = seen(&mut status, |status| status.pending.is_some()).await;
    assert_eq!(waiting.current.as_ref(), Some(&first));
    // The address changes again before a decision: the outdated request is left alone.
    harness.spec.send_replace(serving(&["10.0.0.3"]));
    let later =
        seen(&mut status, |status| status.pending.is_some() && status.pending != waiting.pending).await;
    assert_eq!(later.current.as_ref(), Some(&first));
    harness.signer.set_policy(Policy::Sign);
    let second = seen(&mut status, |now| now.current.as_ref() != Some(&first)).await.current.unwrap();
    assert_eq!(second.mismatch(&serving(&["10.0.0.3"])), None);
    assert!(second.mismatch(&serving(&["10.0.0.2"])).unwrap().contains("10.0.0.2"));
    // Fewer addresses need no new certificate.
    harness.spec.send_replace(CertificateSpec::serving("vk", ["vk".to_owned()], []));
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(harness.signer.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_process_waits_for_the_same_request() {
    let harness = Harness::new(serving(&["10.0.0.1"]));
    harness.signer.set_policy(Policy::Wait);
    let mut names = Vec::new();
    for _ in 0..3 {
        let (mut status, tasks) = harness.run();
        names.push(seen(&mut status, |status| status.pending.is_some()).await.pending.unwrap());
        drop(tasks);
    }
    names.dedup();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(harness.signer.requests().len(), 1);
    // Unless the spec changed.
    harness.spec.send_replace(serving(&["10.0.0.9"]));
    harness.signer.set_policy(Policy::Sign);
    let (mut status, _tasks) = harness.run();
    let pair = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    assert_eq!(pair.mismatch(&serving(&["10.0.0.9"])), None);
    assert_eq!(harness.signer.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn denied_failed_and_deleted_requests_are_retried_with_back_off() {
    for (policy, words) in [
        (Policy::Deny, "was denied: NotYou: no"),
        (Policy::Fail, "was not signed: Broken: no"),
        (Policy::Delete, "was deleted"),
        (Policy::WrongKey, "cannot be used: not a certificate with its key"),
        (Policy::NoNames, "does not hold vk, 10.0.0.1"),
        (Policy::Reject(403), "cannot create a certificate signing request"),
        (Policy::Reject(401), "cannot create a certificate signing request"),
    ] {
        let harness = Harness::new(serving(&["10.0.0.1"]));
        harness.signer.set_policy(policy);
        let (mut status, _tasks) = harness.run();
        let failed = seen(&mut status, |status| status.last_error.is_some()).await;
        assert!(failed.last_error.as_ref().unwrap().contains(words), "{policy:?}: {failed:?}");
        assert!(failed.current.is_none());
        tokio::time::sleep(HOUR).await;
        let asked = harness.signer.attempts();
        assert!((10..=40).contains(&asked), "{policy:?}: {asked} attempts in an hour");
        harness.signer.set_policy(Policy::Sign);
        let good = seen(&mut status, |status| status.current.is_some()).await;
        assert_eq!(good.last_error, None, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_happen_before_the_certificate_expires() {
    for end in [Duration::from_secs(3), Duration::from_secs(20), Duration::from_mins(2)] {
        let harness = Harness::new(CertificateSpec::client("vk"));
        let (mut status, _tasks) = harness.run();
        let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
        harness.signer.set_policy(Policy::Reject(503));
        // The cluster is back shortly before the certificate expires.
        let left = Duration::try_from(first.not_after().duration_since(harness.clock.now())).unwrap();
        tokio::time::sleep(left.checked_sub(end).unwrap()).await;
        assert!(status.borrow().last_error.is_some());
        harness.signer.set_policy(Policy::Sign);
        let renewed = seen(&mut status, |now| now.current.as_ref() != Some(&first)).await;
        assert!(renewed.current.is_some(), "it was renewed in time with {end:?} left");
    }
}

#[tokio::test(start_paused = true)]
async fn many_pending_nodes_use_few_watches_and_few_reads() {
    const NODES: usize = 100;
    let harness = Harness::new(CertificateSpec::client("unused"));
    harness.signer.set_policy(Policy::Wait);
    let mut tasks = tokio::task::JoinSet::new();
    let mut kept = Vec::new();
    for index in 0..NODES {
        let (sender, spec) = watch::channel(CertificateSpec::client(format!("vk-{index}")));
        let store = CertificateStore::new(harness.folder.path().join(format!("{index}.pem")));
        let renewer = Renewer::new(harness.client(), spec, store, harness.clock.clone());
        kept.push((sender, renewer.status()));
        tasks.spawn(renewer.run());
    }
    for (_, status) in &mut kept {
        seen(status, |status| status.pending.is_some()).await;
    }
    tokio::time::sleep(Duration::from_mins(5)).await;
    let before = harness.signer.reads();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let reads = harness.signer.reads() - before;
    assert!((4 * NODES..=11 * NODES).contains(&reads), "{reads} in five minutes");
    assert!(harness.signer.watches() <= 10, "{} watches", harness.signer.watches());
    harness.signer.set_policy(Policy::Sign);
    for (_, status) in &mut kept {
        seen(status, |status| status.current.is_some()).await;
    }
    assert_eq!(harness.signer.attempts(), NODES, "one request for each");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_is_reported_and_causes_no_request_storm() {
    let harness = Harness::new(CertificateSpec::client("vk"));
    // The signer's clock is a day behind: its certificates are expired here.
    harness.signer.set_clock_behind(Duration::from_hours(24));
    let (mut status, tasks) = harness.run();
    let last_error = seen(&mut status, |status| status.last_error.is_some()).await.last_error.unwrap();
    assert!(
        last_error.contains("the clock of this host shows 2026-06-01")
            && last_error.contains("set the clock"),
        "{last_error}"
    );
    drop(tasks);

    // A little behind: certificates are valid here, and due for renewal when issued.
    harness.signer.set_clock_behind(HOUR * 19 / 20);
    let before = harness.signer.attempts();
    let (mut status, _tasks) = harness.run();
    seen(&mut status, |status| status.current.is_some()).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let asked = harness.signer.attempts() - before;
    assert!((20..=60).contains(&asked), "about one per minute: {asked}");
}

#[tokio::test(start_paused = true)]
async fn the_fallback_client_requests_while_no_certificate_is_valid() {
    let harness = Harness::new(CertificateSpec::client("vk"));
    let rejecting = FakeSigner::new(harness.clock.clone(), HOUR);
    rejecting.set_policy(Policy::Reject(401));
    let renewer =
        Renewer::new(rejecting.client(), harness.spec.subscribe(), harness.store(), harness.clock.clone())
            .with_fallback(harness.client());
    let mut status = renewer.status();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(renewer.run());
    seen(&mut status, |status| status.current.is_some()).await;
    assert_eq!((rejecting.attempts(), harness.signer.attempts()), (0, 1));
    // The first client is used while there is a certificate, the fallback after it expired.
    let first = status.borrow().current.clone();
    seen(&mut status, |now| now.current.is_some() && now.current != first).await;
    assert!(rejecting.attempts() > 0);
    assert_eq!(harness.signer.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_foreign_or_expired_file_is_not_used() {
    let harness = Harness::new(CertificateSpec::client("vk"));
    let store = harness.store();
    let pair = obtain(&harness.client(), &CertificateSpec::client("other"), &store, &harness.clock, |_| {})
        .await
        .unwrap();
    assert_eq!(harness.renewer().status().borrow().clone(), RenewalStatus::default(), "another node's");

    obtain(&harness.client(), &CertificateSpec::client("vk"), &store, &harness.clock, |_| {}).await.unwrap();
    assert!(harness.renewer().status().borrow().current.is_some());
    tokio::time::sleep(HOUR).await;
    assert_eq!(harness.renewer().status().borrow().clone(), RenewalStatus::default(), "expired");

    let whole = std::fs::read_to_string(store.path()).unwrap();
    let key = whole.find("-----BEGIN PRIVATE KEY").unwrap();
    let exchanged =
        format!("{}{}", &whole[..key], &pair.pem()[pair.pem().find("-----BEGIN PRIVATE").unwrap()..]);
    for damaged in ["", "text", &whole[..key], &whole[key..], &whole[..whole.len() - 60], &exchanged] {
        std::fs::write(store.path(), damaged).unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(error.contains("vk.pem") && error.contains("not a certificate with its key"), "{error}");
        assert!(harness.renewer().status().borrow().last_error.is_some());
    }
    // It is replaced.
    let (mut status, _tasks) = harness.run();
    seen(&mut status, |status| status.current.is_some()).await;
    assert!(store.load().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn debug_output_omits_the_key() {
    let harness = Harness::new(CertificateSpec::client("vk"));
    let pair =
        obtain(&harness.client(), &harness.spec.borrow().clone(), &harness.store(), &harness.clock, |_| {})
            .await
            .unwrap();
    let shown = format!("{pair:?}");
    assert!(shown.contains("system:node:vk") && !shown.contains("PRIVATE"), "{shown}");
}
