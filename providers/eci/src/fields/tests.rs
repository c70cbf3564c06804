//! The table of fields against the API types, against the translator, and against its page in the documentation.

use std::{collections::BTreeMap, fs, sync::Arc};

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec};
use serde_json::json;
use vk_container_group::{
    backend::{Plan, Rejection, ResolvedPod},
    plan::policy::{
        Choice, Choices, Policy,
        sample::{Sample, resolved},
    },
};
use vk_provider::{
    Config,
    explanation::{ExplainRequest, Explanation, FieldPolicy, FieldResult},
    resolve::Claim,
};

use super::*;
use crate::{
    backend::tests::context,
    config::Settings,
    explanation::explain,
    translate::{EciRequest, Translator},
};

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

/// What the configuration can make of a row, with its choice.
fn outcomes(row: &Row) -> Vec<(Policy, Option<Choice>)> {
    match row.policy {
        Policy::EmulatedOrRefused => {
            vec![(Policy::EmulatedOrRefused, None), (Policy::Refused, Some(Choice::Refuse))]
        }
        Policy::IgnoredOrRefused => vec![(Policy::Ignored, None), (Policy::Refused, Some(Choice::Refuse))],
        policy => vec![(policy, None)],
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
        for (policy, choice) in outcomes(sample.row) {
            let found = disagreement(&sample, policy, choice);
            wrong.extend(found.map(|what| format!("{} ({policy:?}): {what}", sample.row.field)));
        }
    }
    assert!(wrong.is_empty(), "{} rows disagree:\n{}", wrong.len(), wrong.join("\n"));
}

/// The explanation of a pod under this choice.
async fn explained(sample: &Sample, choice: Option<Choice>) -> Explanation {
    let config = json!({
        "region": "cn-hangzhou", "vSwitches": ["vsw-a"], "securityGroup": "sg-1", "clusterDNS": ["10.96.0.10"],
        "prices": {"cpuHour": 0.049, "memoryGiBHour": 0.0061, "currency": "USD"},
    });
    let mut settings = Settings::read(&Config::Inline(config)).unwrap();
    settings.fields =
        Choices(BTreeMap::from_iter(choice.map(|choice| (sample.row.field.to_owned(), choice))));
    let request = ExplainRequest { pod: Arc::new(sample.changed.clone()), ask_backend: false };
    explain(&settings, &context(), &request).await
}

/// Fields and messages, in an order of their own. That a field is ignored is the column beside the message.
fn messages<'a>(all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    let plain = |message: &str| message.strip_prefix("ignored: ").unwrap_or(message).to_owned();
    let mut all: Vec<_> =
        all.into_iter().map(|(field, message)| (field.to_owned(), plain(message))).collect();
    all.sort();
    all
}

/// What is wrong with the explanation of a sample under this policy.
async fn misexplained(sample: &Sample, policy: Policy, choice: Option<Choice>) -> Option<String> {
    let row = sample.row;
    let explanation = explained(sample, choice).await;
    let shown = |rows: &mut dyn Iterator<Item = &FieldResult>| {
        messages(rows.map(|row| (row.field.as_str(), row.result.as_str())).collect::<Vec<_>>())
    };
    let (warned, refused) = (shown(&mut explanation.warnings()), shown(&mut explanation.refused()));
    let (warns, refuses) = match plan(&translator(choice.map(|choice| (row.field, choice))), sample, true) {
        Ok(plan) => {
            let warnings = plan.warnings.iter().map(|one| (one.field.as_str(), one.message.as_str()));
            (messages(warnings), Vec::new())
        }
        // The warnings of a pod that does not run are shown, too, but nobody gets them.
        Err(rejection) => {
            let errors = rejection.errors.iter().map(|one| (one.field.as_str(), one.message.as_str()));
            (warned.clone(), messages(errors))
        }
    };
    if (&warned, &refused) != (&warns, &refuses) {
        return Some(format!(
            "shows the warnings {warned:?} and refusals {refused:?}, the translation has {warns:?} and {refuses:?}"
        ));
    }
    if explanation.runs() != refuses.is_empty() {
        return Some(format!("runs: {}", explanation.runs()));
    }
    // A list of containers or volumes is shown by its items.
    let is_item =
        |path: &str| path.strip_prefix(sample.path.as_str()).is_some_and(|rest| rest.starts_with('['));
    // Items without a name have their number in paths.
    let is_it = |path: &str| path.replace("[0]", "") == sample.path;
    let mut rows = explanation.fields.iter();
    let Some(found) = rows.find(|row| is_it(&row.field) || is_item(&row.field)) else {
        return Some(format!("has no row {}: {:?}", sample.path, explanation.fields));
    };
    let (expected, warning) = match policy {
        Policy::Native => (FieldPolicy::Native, None),
        Policy::Emulated => (FieldPolicy::Emulated, None),
        Policy::Ignored | Policy::IgnoredOrRefused => (FieldPolicy::Ignored, Some(true)),
        Policy::EmulatedOrRefused => (FieldPolicy::Emulated, Some(true)),
        Policy::Refused => (FieldPolicy::Refused, Some(false)),
        Policy::Elsewhere => (FieldPolicy::Elsewhere, Some(false)),
    };
    if found.policy != expected || warning.is_some_and(|warning| found.warning != warning) {
        return Some(format!("is {found:?}"));
    }
    // Where the translation has nothing special to say, the row shows what the table says.
    let is_special = found.warning || found.policy == FieldPolicy::Refused || found.field != sample.path;
    let numbered = row.result.replace("Container.N", "Container.1");
    (!is_special && found.result != numbered).then(|| format!("says {}, not {numbered}", found.result))
}

#[tokio::test]
async fn explain_pod_says_about_every_row_what_the_translator_does() {
    let mut wrong = Vec::new();
    for sample in FIELDS.samples() {
        for (policy, choice) in outcomes(sample.row) {
            let found = misexplained(&sample, policy, choice).await;
            wrong.extend(found.map(|what| format!("{} ({policy:?}): {what}", sample.row.field)));
        }
    }
    assert!(wrong.is_empty(), "{} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
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
