//! What the real kubelet gives to containers, and that ours gives the same.
//!
//! `corpus/` holds pods with the objects they refer to, each named for what it shows. `recorded/` holds what a kubelet of the
//! control plane's version made of them: the environment and command line that the containers printed, the files they
//! saw, and where a pod could not start, what people were told. `make e2e-resolve` records anew ([`peer`]) and compares; here
//! the recordings are replayed: the same objects go to a real API server, and ours is asked what it makes of the pods.
//!
//! What is not compared, because a kubelet leaves it to chance: the order of the environment (it comes out of a Go map) and
//! the order of certificates in a trust bundle (shuffled at each start). Nor what it adds for itself: the annotations
//! `kubernetes.io/config.seen` and `kubernetes.io/config.source` on its copy of the pod. Tokens are compared by what they say.

mod case;
mod contents;
mod recording;
mod stage;

#[cfg(feature = "e2e")]
mod peer;

use case::Case;

#[test]
fn every_case_has_a_recording_and_every_recording_a_case() {
    let cases: Vec<String> = Case::all().into_iter().map(|case| case.name).collect();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    assert_eq!(recording::names(), cases, "record them with `make e2e-resolve ARGS=--record`");
}
