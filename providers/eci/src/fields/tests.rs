//! The table of fields against the API types, against the translator, and against its page in the documentation.

use std::{collections::BTreeMap, fs, sync::Arc};

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec};
use vk_container_group::{
    backend::{Plan, Rejection, ResolvedPod},
    plan::policy::{
        Choice, Choices, Policy,
        sample::{Sample, resolved},
    },
};
use vk_provider::resolve::Claim;

use super::*;
use crate::translate::{EciRequest, Translator};

/// The page in the documentation.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/eci-fields.md");
/// Set to write the page.
const UPDATE: &str = "VK_UPDATE_GENERATED";

const HEAD: &str = "# Fields of pods on ECI\n\n\
    What the provider `eci` does with each field of a pod. Generated from the table that the translation itself uses; a test holds it against the\n\
    API types and the translation.\n\n\
    | policy | meaning |\n|---|---|\n\
    | native | ECI does it, with this parameter of its API |\n\
    | emulated | done by other parameters, to the same effect |\n\
    | ignored | not done; one warning event for each pod |\n\
    | refused | a pod with it does not run; what to write instead |\n\
    | elsewhere | done by the scheduler, a controller or the node |\n\
    | choice | `fields` of the configuration decides: `warn` (the default) or `refuse` |\n\n\
    `virtual-kubelet explain-pod --provider eci` shows it for a manifest.\n\n";

fn translator(choice: Option<(&str, Choice)>) -> Translator {
    let choices = choice.map(|(field, choice)| (field.to_owned(), choice));
    Translator {
        v_switches: vec!["vsw-a".to_owned()],
        is_random: false,
        security_group: "sg-1".to_owned(),
        resource_group: None,
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        choices: Choices(BTreeMap::from_iter(choices)),
        replaces_files: false,
    }
}

/// The pod with what it refers to; behind each claim is a disk.
fn with_disks(pod: k8s_openapi::api::core::v1::Pod) -> ResolvedPod {
    let mut resolved = resolved(pod);
    for claim in resolved.claims.values_mut() {
        let csi = CSIPersistentVolumeSource {
            driver: "diskplugin.csi.alibabacloud.com".to_owned(),
            volume_handle: "d-1".to_owned(),
            ..CSIPersistentVolumeSource::default()
        };
        let spec = PersistentVolumeSpec { csi: Some(csi), ..PersistentVolumeSpec::default() };
        let volume = PersistentVolume { spec: Some(spec), ..PersistentVolume::default() };
        *claim = Claim { claim: Arc::default(), volume: Arc::new(volume) };
    }
    resolved
}

fn plan(translator: &Translator, sample: &Sample, changed: bool) -> Result<Plan<EciRequest>, Rejection> {
    let pod = if changed { &sample.changed } else { &sample.base };
    translator.plan(&with_disks(pod.clone()))
}

/// What is wrong with the translation of a sample under this policy.
fn disagreement(sample: &Sample, policy: Policy, choice: Option<Choice>) -> Option<String> {
    let row = sample.row;
    let translator = translator(choice.map(|choice| (row.field, choice)));
    let changed = plan(&translator, sample, true);
    let refusal = changed.as_ref().err().map(ToString::to_string);
    // Items without a name have their number in paths.
    let is_named = |path: &str| path.replace("[0]", "").starts_with(&sample.path.replace("[0]", ""));
    match policy {
        Policy::Refused => match changed {
            Err(rejection) if rejection.errors.iter().any(|error| is_named(&error.field)) => None,
            other => Some(format!("is not refused at {}: {other:?}", sample.path)),
        },
        _ if refusal.is_some() => Some(format!("is refused: {refusal:?}")),
        Policy::Ignored | Policy::EmulatedOrRefused => {
            let warnings = changed.map(|plan| plan.warnings).unwrap_or_default();
            let found = warnings.iter().any(|warning| is_named(&warning.field));
            (!found).then(|| format!("has no warning at {}: {warnings:?}", sample.path))
        }
        Policy::Native | Policy::Emulated => {
            let base = match plan(&translator, sample, false) {
                Ok(base) => base,
                Err(rejection) => return Some(format!("the pod without it is refused: {rejection}")),
            };
            let same = changed.is_ok_and(|changed| changed.request.create == base.request.create);
            same.then(|| format!("does not change the request: {:?}", base.request.create))
        }
        Policy::Elsewhere | Policy::IgnoredOrRefused => None,
    }
}

#[test]
fn every_field_of_the_api_types_has_a_row() {
    assert_eq!(FIELDS.problems(), Vec::<String>::new());
}

#[test]
fn the_translator_does_what_the_table_says() {
    let mut wrong = Vec::new();
    for sample in FIELDS.samples() {
        let row = sample.row;
        let cases: &[(Policy, Option<Choice>)] = match row.policy {
            Policy::EmulatedOrRefused => {
                &[(Policy::EmulatedOrRefused, None), (Policy::Refused, Some(Choice::Refuse))]
            }
            Policy::IgnoredOrRefused => &[(Policy::Ignored, None), (Policy::Refused, Some(Choice::Refuse))],
            policy => &[(policy, None)],
        };
        for (policy, choice) in cases {
            let found = disagreement(&sample, *policy, *choice);
            wrong.extend(found.map(|what| format!("{} ({policy:?}): {what}", row.field)));
        }
    }
    assert!(wrong.is_empty(), "{} rows disagree:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_page_of_the_documentation_is_up_to_date() {
    let page = format!("{HEAD}{}", FIELDS.to_markdown());
    if std::env::var_os(UPDATE).is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(written == page, "docs/reference/eci-fields.md is stale: run this test with {UPDATE}=1");
}
