use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use proptest::{collection::vec, prelude::any};
use serde_json::json;
use vk_provider::resolve::FileSet;

use super::*;

const LIMITS: FileLimits = FileLimits { file: 32 << 10, group: 60 << 10 };

/// A pod that mounts the volumes `config` and `keys`, and has a volume `unused`.
fn pod(files: &[(&str, &str, Vec<u8>, Origin)]) -> ResolvedPod {
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let pod: Pod = serde_json::from_value(json!({"spec": {
        "volumes": [{"name": "config"}, {"name": "keys"}, {"name": "unused"}],
        "initContainers": [{"name": "setup", "volumeMounts": [mount("config")]}],
        "containers": [{"name": "web", "volumeMounts": [mount("config"), mount("keys")]}],
    }}))
    .unwrap();
    let mut sets: BTreeMap<String, FileSet> = BTreeMap::new();
    for (volume, path, content, origin) in files {
        let set = sets.entry((*volume).to_owned()).or_default();
        set.files.insert((*path).to_owned(), File::new(content.clone(), 0o640, *origin));
    }
    ResolvedPod {
        pod: Arc::new(pod),
        containers: BTreeMap::new(),
        files: sets,
        claims: BTreeMap::new(),
        credentials: BTreeMap::new(),
    }
}

fn refusals(pod: &ResolvedPod) -> Vec<(String, String)> {
    let mut diagnostics = Diagnostics::default();
    volumes(pod, &LIMITS, &mut diagnostics);
    diagnostics.errors().iter().map(|error| (error.field.clone(), error.message.clone())).collect()
}

#[test]
fn files_have_volume_path_mode_origin_and_mounts() {
    let pod = pod(&[
        ("keys", "tls/key", b"k".to_vec(), Origin::Secret),
        ("config", "app.toml", b"c".to_vec(), Origin::ConfigMap),
    ]);
    let found = volumes(&pod, &LIMITS, &mut Diagnostics::default());
    let names: Vec<_> = found.iter().map(|volume| volume.volume.as_str()).collect();
    assert_eq!(names, ["config", "keys"], "in the order of the pod");
    let file = &found[1].files[0];
    assert_eq!(
        (file.path.as_str(), file.octal_mode().as_str(), file.origin),
        ("tls/key", "0640", Origin::Secret)
    );
    let mounts: Vec<_> = found[0].mounts.iter().map(|mount| (mount.container.as_str(), mount.init)).collect();
    assert_eq!(mounts, [("setup", true), ("web", false)]);
    assert_eq!(usage(&found), FileUsage { volumes: 2, files: 2, bytes: 2 });
}

#[test]
fn a_volume_that_nobody_mounts_is_left_out_and_does_not_count() {
    let pod = pod(&[("unused", "large", vec![0; 100 << 10], Origin::ConfigMap)]);
    assert!(volumes(&pod, &LIMITS, &mut Diagnostics::default()).is_empty());
    assert!(refusals(&pod).is_empty());
}

#[test]
fn a_file_over_the_limit_is_refused_with_volume_file_and_sizes() {
    assert!(refusals(&pod(&[("config", "f", vec![0; 32 << 10], Origin::ConfigMap)])).is_empty());
    let refused = refusals(&pod(&[("config", "f", vec![0; (32 << 10) + 1], Origin::ConfigMap)]));
    let expected = "file f has 32.1 KB; a file of this cloud has at most 32 KB: put it into the image or on a network volume";
    assert_eq!(refused, [("spec.volumes[config]".to_owned(), expected.to_owned())]);
}

#[test]
fn files_that_are_too_large_together_are_refused_with_the_size_of_each_volume() {
    let half = || vec![0; 30 << 10];
    let most = [("config", "f", half(), Origin::ConfigMap), ("keys", "g", half(), Origin::Secret)];
    assert!(refusals(&pod(&most)).is_empty());
    let mut more = most.to_vec();
    more.push(("config", "h", vec![0], Origin::ConfigMap));
    let refused = refusals(&pod(&more));
    assert_eq!(refused.len(), 1);
    let (field, message) = &refused[0];
    assert_eq!(field, "spec.volumes");
    assert!(message.starts_with("the files of the pod have 60.1 KB (config 30.1 KB, keys 30 KB); those of a group have at most 60 KB"), "{message}");
}

#[test]
fn every_file_over_the_limit_is_named() {
    let large = || vec![0; 33 << 10];
    let files = [("config", "a", large(), Origin::ConfigMap), ("config", "b", large(), Origin::ConfigMap)];
    let refused = refusals(&pod(&files));
    assert_eq!(refused.len(), 2, "the volume, and all files together");
    assert!(
        refused[0].1.contains("file a has 33 KB") && refused[0].1.contains("file b has 33 KB"),
        "{refused:?}"
    );
}

#[test]
fn debug_output_has_no_contents() {
    let pod = pod(&[("keys", "key", b"hunter2".to_vec(), Origin::Secret)]);
    let found = volumes(&pod, &LIMITS, &mut Diagnostics::default());
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[test]
fn every_length_and_every_byte_survives() {
    for length in 0..=100 {
        for first in 0..=255_u8 {
            let content: Vec<u8> = (0..length).map(|at: u8| first.wrapping_add(at)).collect();
            let found = volumes(
                &pod(&[("config", "f", content.clone(), Origin::ConfigMap)]),
                &LIMITS,
                &mut Diagnostics::default(),
            );
            let file = &found[0].files[0];
            assert_eq!(file.content, content);
            assert_eq!(BASE64_STANDARD.decode(file.base64()).unwrap(), content);
        }
    }
}

proptest::proptest! {
    #[test]
    fn contents_are_passed_on_byte_for_byte(content in vec(any::<u8>(), 0..=100)) {
        let found = volumes(
            &pod(&[("config", "f", content.clone(), Origin::ConfigMap)]),
            &LIMITS,
            &mut Diagnostics::default(),
        );
        let file = &found[0].files[0];
        proptest::prop_assert_eq!(&file.content[..], &content[..]);
        proptest::prop_assert_eq!(BASE64_STANDARD.decode(file.base64()).unwrap(), content);
    }
}
