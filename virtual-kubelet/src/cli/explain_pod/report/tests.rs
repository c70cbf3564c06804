use k8s_openapi::api::core::v1::Pod;
use vk_provider::{
    explanation::UnreadObject,
    inventory::{Price, Size},
};

use super::*;

fn workload(kind: &str) -> Workload {
    Workload { kind: kind.into(), namespace: "shop".into(), name: "web".into(), pod: Pod::default() }
}

fn list(amounts: &[(&str, &str)]) -> ResourceList {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
}

fn explanation() -> Explanation {
    let unread = |kind: &str, name: &str| UnreadObject {
        kind: kind.into(),
        namespace: "shop".into(),
        name: name.into(),
    };
    let mut explanation = Explanation {
        place: Some("cn-hangzhou".into()),
        size: Some(SizeChoice {
            requested: list(&[("cpu", "1500m"), ("memory", "3Gi")]),
            init: Some(list(&[("cpu", "500m"), ("memory", "1Gi")])),
            given: Some(Size {
                cpu: "2".parse().unwrap(),
                memory: "4Gi".parse().unwrap(),
                instance_type: None,
            }),
            reason: "next larger ECI size".into(),
        }),
        price: Some(PriceEstimate::Known {
            price: Price { per_hour: 0.1224, currency: "USD".into() },
            source: "list price from the configuration".into(),
        }),
        files: Some(FileUsage { volumes: 2, bytes: 3_150, limit: Some(60 << 10) }),
        not_read: vec![unread("ConfigMap", "web"), unread("Secret", "db")],
        ..Explanation::default()
    };
    explanation.push("spec.containers[web].args", FieldPolicy::Native, "Container.1.Arg");
    explanation.push("spec.containers[web].startupProbe", FieldPolicy::Emulated, "");
    explanation.warn(
        "spec.containers[web].startupProbe",
        "liveness probe starts 60 s later;\n a slow start looks like a hang",
    );
    explanation.warn("spec.containers[web].resources.limits", "ECI limits the group, not the container");
    explanation.push("spec.topologySpreadConstraints", FieldPolicy::Elsewhere, "handled by the scheduler");
    explanation
}

#[test]
fn a_pod_that_runs_is_explained_with_its_size_price_files_and_fields() {
    let workload = workload("Deployment");
    let explained =
        Explained { workload: &workload, provider: "eci", explanation: explanation(), asked: false };
    assert_eq!(
        explained.text(true),
        "Deployment shop/web: pods on eci (cn-hangzhou)\n\
         \n\
         \x20 runs      yes, with 2 warnings\n\
         \x20 size      requests 1.5 cpu, 3Gi (init 0.5, 1Gi)    gets 2 cpu, 4Gi    next larger ECI size\n\
         \x20 price     0.1224 USD/h per pod (list price from the configuration)\n\
         \x20 files     2 volumes, 3.1 KB of 60 KB\n\
         \x20 not read  ConfigMap shop/web, Secret shop/db: sizes not counted\n\
         \n\
         \x20 FIELD                                  POLICY     RESULT\n\
         \x20 spec.containers[web].args              native     Container.1.Arg\n\
         \x20 spec.containers[web].startupProbe      emulated   liveness probe starts 60 s later; a slow start looks like a hang\n\
         \x20 spec.containers[web].resources.limits  ignored    ECI limits the group, not the container\n\
         \x20 spec.topologySpreadConstraints         elsewhere  handled by the scheduler\n"
    );
    let short = explained.text(false);
    assert!(!short.contains("native") && short.contains("elsewhere"), "{short}");
}

#[test]
fn a_pod_that_does_not_run_names_every_refused_field() {
    let workload = workload("Pod");
    let mut explanation = explanation();
    explanation.refuse("spec.hostNetwork", "pods have their own network; remove it");
    explanation.refuse("spec.containers[web].args", "too many");
    let text = Explained { workload: &workload, provider: "eci", explanation, asked: false }.text(false);
    assert!(text.starts_with("Pod shop/web on eci (cn-hangzhou)\n"), "{text}");
    assert!(text.contains("\n  runs      no: spec.containers[web].args, spec.hostNetwork\n"), "{text}");
    assert!(text.contains("spec.hostNetwork                       refused    pods have"), "{text}");
}

#[test]
fn a_provider_that_changes_nothing_says_so_in_one_line() {
    let workload = workload("Pod");
    let explanation = Explanation::unchanged();
    let text = Explained { workload: &workload, provider: "mock", explanation, asked: false }.text(false);
    assert_eq!(text, "Pod shop/web on mock\n\n  runs      yes: mock passes pods through unchanged\n");
}

#[test]
fn the_answer_of_the_backend_is_shown() {
    let workload = workload("Pod");
    let text = |answer: BackendAnswer| {
        let explanation = Explanation { backend: Some(answer), ..Explanation::default() };
        Explained { workload: &workload, provider: "eci", explanation, asked: false }.text(false)
    };
    let accepted = text(BackendAnswer::Accepted("the dry run passed".into()));
    assert!(
        accepted.contains("  runs      yes\n  asked     eci accepts it: the dry run passed\n"),
        "{accepted}"
    );
    let refused = text(BackendAnswer::Refused("NoStock".into()));
    assert!(
        refused.contains("  runs      no: eci refuses it\n  asked     eci refuses it: NoStock\n"),
        "{refused}"
    );
    assert!(text(BackendAnswer::Failed("timeout".into())).contains("  asked     no answer: timeout\n"));
    let explanation = Explanation::unchanged();
    let silent = Explained { workload: &workload, provider: "mock", explanation, asked: true }.text(false);
    assert!(silent.ends_with("  asked     mock offers no dry run\n"), "{silent}");
}

#[test]
fn the_json_has_all_fields() {
    let workload = workload("Deployment");
    let json =
        Explained { workload: &workload, provider: "eci", explanation: explanation(), asked: false }.json();
    assert_eq!(json["runs"], true);
    assert_eq!((&json["warnings"], &json["refused"]), (&json!(2), &json!(0)));
    assert_eq!(json["size"]["given"], json!({"cpu": "2", "memory": "4Gi"}));
    assert_eq!(json["price"]["currency"], "USD");
    assert_eq!(json["files"], json!({"volumes": 2, "bytes": 3_150, "limit": 61_440}));
    assert_eq!(json["notRead"][1], json!({"kind": "Secret", "namespace": "shop", "name": "db"}));
    assert_eq!(json["fields"].as_array().unwrap().len(), 4);
    assert_eq!(json["fields"][0]["policy"], "native");
}

#[test]
fn amounts_are_written_for_people() {
    assert_eq!(amounts(&list(&[]), ""), "nothing");
    assert_eq!(
        amounts(&list(&[("cpu", "100m"), ("nvidia.com/gpu", "1")]), " cpu"),
        "0.1 cpu, 1 nvidia.com/gpu"
    );
    assert_eq!((cpus("12".parse().unwrap()), cpus("250m".parse().unwrap())), ("12".into(), "0.25".into()));
    for (bytes, text) in [(0, "0 KB"), (1, "0.1 KB"), (1_024, "1 KB"), (3_150, "3.1 KB"), (61_440, "60 KB")] {
        assert_eq!(kilobytes(bytes), text);
    }
}
