//! Against a cluster in memory that signs, refuses or lets wait as a test says, in paused time.

mod authority;

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use vk_supervisor::Clock;

use self::authority::{Authority, Policy};
use super::*;
use crate::Client;

const HOUR: Duration = Duration::from_hours(1);

struct Bench {
    folder: tempfile::TempDir,
    authority: Authority,
    clock: Clock,
    wanted: watch::Sender<CertificateSpec>,
}

impl Bench {
    fn new(wanted: CertificateSpec) -> Self {
        let start: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let clock = Clock::following_tokio(start);
        Self {
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new(clock.clone(), HOUR),
            clock,
            wanted: watch::Sender::new(wanted),
        }
    }

    fn store(&self) -> Store {
        Store::new(self.folder.path().join("pki/vk.pem"))
    }

    fn client(&self) -> Client {
        self.authority.client()
    }

    fn renewer(&self) -> Renewer {
        Renewer::new(self.client(), self.wanted.subscribe(), self.store(), self.clock.clone())
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
    // Paused time runs on by itself while everybody waits.
    tokio::time::timeout(Duration::from_hours(48), status.wait_for(what)).await.unwrap().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_asked_for_stored_and_found_again() {
    let bench = Bench::new(serving(&["10.0.0.1", "fd00::1"]));
    let (mut status, tasks) = bench.run();
    let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    assert_eq!(first.lacks(&bench.wanted.borrow()), None);
    assert_eq!(bench.authority.requests().len(), 1);
    let asked = bench.authority.requests().remove(0);
    assert_eq!(asked.spec.signer_name, "kubernetes.io/kubelet-serving");
    assert_eq!(asked.spec.usages.unwrap(), ["digital signature", "server auth"]);
    drop(tasks);

    let path = bench.store().path().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "nothing is left beside the certificate");

    // The next process has it at once, and asks for nothing.
    let status = bench.renewer().status();
    assert_eq!(status.borrow().current.as_ref(), Some(&first));
    let (_standing, _tasks) = bench.run();
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(bench.authority.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_when_70_to_90_per_cent_of_its_life_are_over() {
    let bench = Bench::new(CertificateSpec::client("vk"));
    let (mut status, _tasks) = bench.run();
    let mut last = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    let mut parts = Vec::new();
    for _ in 0..20 {
        let next = seen(&mut status, |now| now.current.as_ref().is_some_and(|pair| *pair != last)).await;
        let life = last.not_after().duration_since(last.not_before()).as_secs_f64();
        parts.push(bench.clock.now().duration_since(last.not_before()).as_secs_f64() / life);
        last = next.current.unwrap();
    }
    // Up to ten seconds pass until the clock is read, and one or two until the answer is seen.
    assert!(parts.iter().all(|part| (0.7..=0.905).contains(part)), "{parts:?}");
    let (least, most) =
        (parts.iter().copied().fold(1.0, f64::min), parts.iter().copied().fold(0.0, f64::max));
    assert!(most - least > 0.02, "they are spread: {parts:?}");
    assert_eq!(bench.store().load().unwrap(), Some(last));
}

#[tokio::test(start_paused = true)]
async fn the_old_certificate_serves_while_the_new_one_is_pending_and_not_beyond_its_life() {
    let bench = Bench::new(serving(&["10.0.0.1"]));
    let (mut status, _tasks) = bench.run();
    let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    bench.authority.set(Policy::Wait);
    let waiting = seen(&mut status, |status| status.pending.is_some()).await;
    assert_eq!(waiting.current.as_ref(), Some(&first));
    assert!(bench.clock.now() < first.not_after());
    let expired = seen(&mut status, |status| status.current.is_none()).await;
    assert!(expired.pending.is_some() && bench.clock.now() >= first.not_after());
    bench.authority.set(Policy::Sign);
    let renewed = seen(&mut status, |status| status.current.is_some()).await;
    assert_eq!((renewed.pending, renewed.trouble), (None, None));
    assert_eq!(bench.authority.requests().len(), 2, "one request was enough for all the waiting");
}

#[tokio::test(start_paused = true)]
async fn another_address_gets_another_certificate_and_the_old_one_serves_until_then() {
    let bench = Bench::new(serving(&["10.0.0.1"]));
    let (mut status, _tasks) = bench.run();
    let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    bench.authority.set(Policy::Wait);
    bench.wanted.send_replace(serving(&["10.0.0.2"]));
    let waiting = seen(&mut status, |status| status.pending.is_some()).await;
    assert_eq!(waiting.current.as_ref(), Some(&first));
    // And again, before anybody has decided: the request for an address that is gone is left alone.
    bench.wanted.send_replace(serving(&["10.0.0.3"]));
    let later =
        seen(&mut status, |status| status.pending.is_some() && status.pending != waiting.pending).await;
    assert_eq!(later.current.as_ref(), Some(&first));
    bench.authority.set(Policy::Sign);
    let second = seen(&mut status, |now| now.current.as_ref() != Some(&first)).await.current.unwrap();
    assert_eq!(second.lacks(&serving(&["10.0.0.3"])), None);
    assert!(second.lacks(&serving(&["10.0.0.2"])).unwrap().contains("10.0.0.2"));
    // Fewer addresses need no other certificate.
    bench.wanted.send_replace(CertificateSpec::serving("vk", ["vk".to_owned()], []));
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(bench.authority.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_same_request_is_waited_for() {
    let bench = Bench::new(serving(&["10.0.0.1"]));
    bench.authority.set(Policy::Wait);
    let mut names = Vec::new();
    for _ in 0..3 {
        let (mut status, tasks) = bench.run();
        names.push(seen(&mut status, |status| status.pending.is_some()).await.pending.unwrap());
        drop(tasks);
    }
    names.dedup();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(bench.authority.requests().len(), 1);
    // Unless something else is wanted by then.
    bench.wanted.send_replace(serving(&["10.0.0.9"]));
    bench.authority.set(Policy::Sign);
    let (mut status, _tasks) = bench.run();
    let pair = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
    assert_eq!(pair.lacks(&serving(&["10.0.0.9"])), None);
    assert_eq!(bench.authority.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_not_signed_or_deleted_is_asked_for_again_with_growing_pauses() {
    for (policy, words) in [
        (Policy::Deny, "was denied: NotYou: no"),
        (Policy::Fail, "was not signed: Broken: no"),
        (Policy::Delete, "was deleted"),
        (Policy::Strange, "cannot be used: not a certificate with its key"),
        (Policy::Nameless, "does not hold vk, 10.0.0.1"),
        (Policy::Refuse(403), "cannot create a certificate signing request"),
        (Policy::Refuse(401), "cannot create a certificate signing request"),
    ] {
        let bench = Bench::new(serving(&["10.0.0.1"]));
        bench.authority.set(policy);
        let (mut status, _tasks) = bench.run();
        let trouble = seen(&mut status, |status| status.trouble.is_some()).await;
        assert!(trouble.trouble.as_ref().unwrap().contains(words), "{policy:?}: {trouble:?}");
        assert!(trouble.current.is_none());
        tokio::time::sleep(HOUR).await;
        let asked = bench.authority.attempts();
        assert!((10..=40).contains(&asked), "{policy:?}: {asked} attempts in an hour");
        bench.authority.set(Policy::Sign);
        let good = seen(&mut status, |status| status.current.is_some()).await;
        assert_eq!(good.trouble, None, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_never_outlast_the_certificate() {
    for end in [Duration::from_secs(3), Duration::from_secs(20), Duration::from_mins(2)] {
        let bench = Bench::new(CertificateSpec::client("vk"));
        let (mut status, _tasks) = bench.run();
        let first = seen(&mut status, |status| status.current.is_some()).await.current.unwrap();
        bench.authority.set(Policy::Refuse(503));
        // The cluster is back shortly before the end.
        let left = Duration::try_from(first.not_after().duration_since(bench.clock.now())).unwrap();
        tokio::time::sleep(left.checked_sub(end).unwrap()).await;
        assert!(status.borrow().trouble.is_some());
        bench.authority.set(Policy::Sign);
        let renewed = seen(&mut status, |now| now.current.as_ref() != Some(&first)).await;
        assert!(renewed.current.is_some(), "it was renewed in time with {end:?} left");
    }
}

#[tokio::test(start_paused = true)]
async fn many_nodes_wait_for_approval_with_few_watches_and_seldom_reads() {
    const NODES: usize = 100;
    let bench = Bench::new(CertificateSpec::client("unused"));
    bench.authority.set(Policy::Wait);
    let mut tasks = tokio::task::JoinSet::new();
    let mut kept = Vec::new();
    for index in 0..NODES {
        let (sender, wanted) = watch::channel(CertificateSpec::client(format!("vk-{index}")));
        let store = Store::new(bench.folder.path().join(format!("{index}.pem")));
        let renewer = Renewer::new(bench.client(), wanted, store, bench.clock.clone());
        kept.push((sender, renewer.status()));
        tasks.spawn(renewer.run());
    }
    for (_, status) in &mut kept {
        seen(status, |status| status.pending.is_some()).await;
    }
    tokio::time::sleep(Duration::from_mins(5)).await;
    let before = bench.authority.reads();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let reads = bench.authority.reads() - before;
    assert!((4 * NODES..=11 * NODES).contains(&reads), "{reads} in five minutes");
    assert!(bench.authority.watches() <= 10, "{} watches", bench.authority.watches());
    bench.authority.set(Policy::Sign);
    for (_, status) in &mut kept {
        seen(status, |status| status.current.is_some()).await;
    }
    assert_eq!(bench.authority.attempts(), NODES, "one request for each");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_is_named_and_makes_no_storm() {
    let bench = Bench::new(CertificateSpec::client("vk"));
    // The authority lives a day behind: what it issues has expired here.
    bench.authority.set_back(Duration::from_hours(24));
    let (mut status, tasks) = bench.run();
    let trouble = seen(&mut status, |status| status.trouble.is_some()).await.trouble.unwrap();
    assert!(
        trouble.contains("the clock of this machine shows 2026-06-01") && trouble.contains("set the clock"),
        "{trouble}"
    );
    drop(tasks);

    // So little behind that it is valid here, and due as soon as it comes.
    bench.authority.set_back(HOUR * 19 / 20);
    let before = bench.authority.attempts();
    let (mut status, _tasks) = bench.run();
    seen(&mut status, |status| status.current.is_some()).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let asked = bench.authority.attempts() - before;
    assert!((20..=60).contains(&asked), "some in a minute: {asked}");
}

#[tokio::test(start_paused = true)]
async fn without_a_valid_certificate_the_fallback_asks() {
    let bench = Bench::new(CertificateSpec::client("vk"));
    let deaf = Authority::new(bench.clock.clone(), HOUR);
    deaf.set(Policy::Refuse(401));
    let renewer = Renewer::new(deaf.client(), bench.wanted.subscribe(), bench.store(), bench.clock.clone())
        .with_fallback(bench.client());
    let mut status = renewer.status();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(renewer.run());
    seen(&mut status, |status| status.current.is_some()).await;
    assert_eq!((deaf.attempts(), bench.authority.attempts()), (0, 1));
    // The first client is asked while there is one, and the fallback when it has run out.
    let first = status.borrow().current.clone();
    seen(&mut status, |now| now.current.is_some() && now.current != first).await;
    assert!(deaf.attempts() > 0);
    assert_eq!(bench.authority.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_foreign_or_expired_file_is_not_used() {
    let bench = Bench::new(CertificateSpec::client("vk"));
    let store = bench.store();
    let pair = obtain(&bench.client(), &CertificateSpec::client("other"), &store, &bench.clock, |_| {})
        .await
        .unwrap();
    assert_eq!(bench.renewer().status().borrow().clone(), RenewalStatus::default(), "another node's");

    obtain(&bench.client(), &CertificateSpec::client("vk"), &store, &bench.clock, |_| {}).await.unwrap();
    assert!(bench.renewer().status().borrow().current.is_some());
    tokio::time::sleep(HOUR).await;
    assert_eq!(bench.renewer().status().borrow().clone(), RenewalStatus::default(), "expired");

    let whole = std::fs::read_to_string(store.path()).unwrap();
    let key = whole.find("-----BEGIN PRIVATE KEY").unwrap();
    let exchanged =
        format!("{}{}", &whole[..key], &pair.pem()[pair.pem().find("-----BEGIN PRIVATE").unwrap()..]);
    for damaged in ["", "text", &whole[..key], &whole[key..], &whole[..whole.len() - 60], &exchanged] {
        std::fs::write(store.path(), damaged).unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(error.contains("vk.pem") && error.contains("not a certificate with its key"), "{error}");
        assert!(bench.renewer().status().borrow().trouble.is_some());
    }
    // And it is replaced.
    let (mut status, _tasks) = bench.run();
    seen(&mut status, |status| status.current.is_some()).await;
    assert!(store.load().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_pair_is_not_shown() {
    let bench = Bench::new(CertificateSpec::client("vk"));
    let pair = obtain(&bench.client(), &bench.wanted.borrow().clone(), &bench.store(), &bench.clock, |_| {})
        .await
        .unwrap();
    let shown = format!("{pair:?}");
    assert!(shown.contains("system:node:vk") && !shown.contains("PRIVATE"), "{shown}");
}
