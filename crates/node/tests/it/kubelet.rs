//! Comparison of our resolver with the real kubelet.
//!
//! `corpus/` has pods with the objects they refer to, named after what they show. `recorded/` has the results of a kubelet of
//! the control plane's version: the environment and command line that the containers printed, the files they saw, and the
//! events of pods that could not start. `make e2e-resolve` records again ([`peer`]) and compares. Here the recordings are
//! replayed: the same objects are created on a real API server and resolved by our resolver.
//!
//! Not compared, because it is random in a kubelet: the order of the environment (from a Go map) and the order of
//! certificates in a trust bundle (shuffled at each start). Also not compared: the annotations `kubernetes.io/config.seen` and
//! `kubernetes.io/config.source` that the kubelet adds to its copy of the pod. Tokens are compared by their claims.

mod case;
mod comparison;
mod control_plane;
mod file_contents;
mod recording;
mod volume_files;

#[cfg(feature = "e2e")]
mod peer;

use futures::{StreamExt as _, stream};

use case::Case;
use comparison::OurResolver;
use recording::{Node, Recording};

/// Intended differences from the kubelet, with reasons.
const DELIBERATE: [(&str, &str); 2] = [
    ("env-secret-not-utf8", "a variable is text in our contract; ours says so on the pod and names the key"),
    ("envfrom-secret-not-utf8", "the same: such a key is left out, and people hear of it"),
];
/// Number of cases that run concurrently.
const AT_ONCE: usize = 16;

#[test]
fn every_case_has_a_recording_and_every_recording_a_case() {
    let cases: Vec<String> = Case::all().into_iter().map(|case| case.name).collect();
    assert_eq!(recording::names(), cases, "record them with `make e2e-resolve ARGS=--record`");
    let started = |name: &&String| {
        Recording::load(name).containers.values().any(|container| container.started.is_some())
    };
    let started = cases.iter().filter(started).count();
    assert!(started >= 40, "containers of only {started} pods were started");
    // A mistake in a case shall not pass for something that Kubernetes refuses.
    for name in &cases {
        let refused = Recording::load(name).refused;
        assert_eq!(refused.is_some(), name.starts_with("bad-"), "{name}: {refused:?}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn ours_gives_containers_what_the_kubelet_gave() {
    let cluster = control_plane::control_plane().await;
    let client = cluster.admin().unwrap();
    let ours = OurResolver::new(&cluster, Node::load());
    let found: Vec<(String, Vec<String>)> = stream::iter(Case::all())
        .map(|case| {
            let (cluster, client, ours) = (&cluster, &client, &ours);
            async move {
                let recorded = Recording::load(&case.name);
                let found = match control_plane::place(cluster, client, &case).await {
                    Ok(placed) => ours.differences(placed, &recorded).await,
                    Err(refused) if recorded.refused.as_ref() == Some(&refused) => Vec::new(),
                    Err(refused) => vec![format!("the API server refuses it: {refused}")],
                };
                (case.name, found)
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    ours.stop().await;
    assert_as_meant(&found);
}

/// Nothing differs but what is meant to, and that does.
fn assert_as_meant(found: &[(String, Vec<String>)]) {
    let meant = |name: &str| DELIBERATE.iter().any(|(case, _)| *case == name);
    let wrong: Vec<String> = found
        .iter()
        .filter(|(name, differences)| meant(name) == differences.is_empty())
        .map(|(name, differences)| match differences.as_slice() {
            [] => format!("{name}: as the kubelet does it, though DELIBERATE says otherwise"),
            differences => format!("{name}: {}", differences.join("; ")),
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), found.len(), wrong.join("\n"));
}
