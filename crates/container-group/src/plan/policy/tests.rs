use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{self as core, Pod};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    api_fields::{COVERED_TYPES, Shape, api_fields},
    sample::resolved,
    *,
};

const TABLE: PolicyTable = PolicyTable {
    cloud: "Test",
    rows: &[
        Row::native("PodSpec.containers", "Container.N"),
        Row::native("PodSpec.initContainers", "InitContainer.N"),
        Row::native("PodSpec.volumes", "Volume.N"),
        Row::refused("PodSpec.hostNetwork", "remove it").unless(&[Literal::Bool(false)]),
        Row::elsewhere("PodSpec.affinity", "handled by the scheduler"),
        Row::native("PodSpec.securityContext", "SecurityContext"),
        Row::choice_ignored("PodSecurityContext.fsGroup", "volumes belong to root", "use an init container"),
        Row::native("Container.name", "Name"),
        Row::native("Container.args", "Arg"),
        Row::ignored("Container.terminationMessagePath", "there is none")
            .unless(&[Literal::Text("/dev/termination-log")]),
        Row::native("Container.livenessProbe", "LivenessProbe"),
        Row::choice_emulated(
            "Container.startupProbe",
            "liveness probe starts later",
            "use initialDelaySeconds",
        ),
        Row::native("Container.resources", "Cpu and Memory"),
        Row::ignored("Container.resources.limits", "the group is limited, not the container"),
        Row::native("Container.volumeMounts", "VolumeMount"),
        Row::native("VolumeMount.name", "Name"),
        Row::native("VolumeMount.mountPath", "MountPath"),
        Row::native("Probe.httpGet", "HttpGet"),
        Row::refused("Probe.httpGet.httpHeaders", "use exec"),
        Row::native("Probe.tcpSocket", "TcpSocket"),
        Row::native("Volume.name", "Name"),
        Row::native("Volume.emptyDir", "EmptyDirVolume"),
    ],
};

fn review(spec: Value, choices: &Choices) -> Review {
    let mut pod = json!({});
    pod["spec"] = spec;
    let pod: Pod = serde_json::from_value(pod).unwrap();
    TABLE.review(&pod, choices)
}

fn shown(review: &Review) -> Vec<(&str, &str)> {
    review.fields.iter().map(|field| (field.path.as_str(), field.outcome.name())).collect()
}

fn choices(json: Value) -> Choices {
    serde_json::from_value(json).unwrap()
}

#[test]
fn the_fields_of_the_api_types_are_known() {
    let fields = api_fields();
    for api_type in COVERED_TYPES {
        assert!(!fields.of(api_type).is_empty(), "{api_type}");
    }
    let names = |api_type| fields.of(api_type).iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names("Lifecycle"), ["postStart", "preStop", "stopSignal"]);
    assert_eq!(names("LifecycleHandler"), ["exec", "httpGet", "sleep", "tcpSocket"]);
    assert_eq!(fields.shape("Container.livenessProbe"), Some(&Shape::Object("Probe")));
    assert_eq!(fields.shape("PodSpec.containers"), Some(&Shape::List(Box::new(Shape::Object("Container")))));
    assert_eq!(fields.shape("Probe.httpGet.port"), Some(&Shape::NumberOrText));
    assert_eq!(
        fields.shape("Container.resources.limits"),
        Some(&Shape::Map(Box::new(Shape::Text("Quantity"))))
    );
    assert_eq!(fields.shape("Container.misspelt"), None);
}

/// A value of this type.
fn value(shape: &Shape) -> Value {
    match shape {
        Shape::Text(name) if name.contains("Time") => json!("2030-01-01T00:00:00Z"),
        Shape::Text(_) => json!("1"),
        Shape::Number | Shape::NumberOrText => json!(1),
        Shape::Bool => json!(true),
        Shape::Object(_) => json!({}),
        Shape::List(of) => json!([value(of)]),
        Shape::Map(of) => json!({"a": value(of)}),
    }
}

/// The fields of an object that a type reads and writes.
fn read<T: DeserializeOwned + Serialize>(object: Value) -> BTreeSet<String> {
    let typed: T = serde_json::from_value(object).unwrap();
    serde_json::to_value(typed).unwrap().as_object().unwrap().keys().cloned().collect()
}

#[test]
fn no_field_of_the_api_types_is_missed() {
    // What the types write is what they read: an object with all fields comes back with all fields.
    let fields = api_fields();
    let names =
        |api_type| fields.of(api_type).iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>();
    let object = |api_type: &str| -> Value {
        let all = fields.of(api_type).iter().map(|(name, shape)| ((*name).to_owned(), value(shape)));
        Value::Object(all.collect())
    };
    for (api_type, read) in [
        ("PodSpec", read::<core::PodSpec> as fn(Value) -> _),
        ("PodSecurityContext", read::<core::PodSecurityContext>),
        ("Container", read::<core::Container>),
        ("SecurityContext", read::<core::SecurityContext>),
        ("Probe", read::<core::Probe>),
        ("Lifecycle", read::<core::Lifecycle>),
        ("LifecycleHandler", read::<core::LifecycleHandler>),
        ("Volume", read::<core::Volume>),
        ("VolumeMount", read::<core::VolumeMount>),
    ] {
        assert_eq!(read(object(api_type)), names(api_type), "{api_type}");
    }
}

#[test]
fn a_table_that_lacks_a_field_or_has_another_is_reported() {
    const BAD: PolicyTable = PolicyTable {
        cloud: "Test",
        rows: &[
            Row::native("Lifecycle.preStop", "PreStop"),
            Row::native("Lifecycle.preStop", "PreStop"),
            Row::native("Lifecycle.preStart", "PreStart"),
            Row::native("EnvVar.name", "Name"),
            Row::ignored("Lifecycle.stopSignal", ""),
            Row::native("Probe.grpc", "Grpc").sample("{"),
        ],
    };
    let problems = BAD.problems();
    for expected in [
        "Lifecycle.postStart has no row",
        "Lifecycle.preStop has two rows",
        "Lifecycle.preStart is not a field of the API",
        "EnvVar.name is not a field of the API",
        "Lifecycle.stopSignal does not say what happens",
        "the sample of Probe.grpc is not JSON",
    ] {
        assert!(problems.iter().any(|problem| problem == expected), "{expected}: {problems:#?}");
    }
}

#[test]
fn every_field_that_is_set_has_its_path_and_outcome() {
    let spec = json!({
        "affinity": {"podAffinity": {}},
        "securityContext": {"fsGroup": 1},
        "initContainers": [{"name": "setup", "args": ["a"]}],
        "containers": [{
            "name": "web", "args": ["a"], "terminationMessagePath": "/x",
            "resources": {"limits": {"cpu": "1"}},
            "livenessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "b"}]}},
            "startupProbe": {"tcpSocket": {"port": 80}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "hostNetwork": true,
    });
    let review = review(spec, &Choices::default());
    let expected = [
        ("spec.affinity", "elsewhere"),
        ("spec.containers[web].args", "native"),
        ("spec.containers[web].livenessProbe", "native"),
        ("spec.containers[web].livenessProbe.httpGet", "native"),
        ("spec.containers[web].livenessProbe.httpGet.httpHeaders", "refused"),
        ("spec.containers[web].name", "native"),
        ("spec.containers[web].resources", "native"),
        ("spec.containers[web].resources.limits", "ignored"),
        ("spec.containers[web].startupProbe", "emulated"),
        ("spec.containers[web].terminationMessagePath", "ignored"),
        ("spec.containers[web].volumeMounts[/data].mountPath", "native"),
        ("spec.containers[web].volumeMounts[/data].name", "native"),
        ("spec.hostNetwork", "refused"),
        ("spec.initContainers[setup].args", "native"),
        ("spec.initContainers[setup].name", "native"),
        ("spec.securityContext", "native"),
        ("spec.securityContext.fsGroup", "ignored"),
        ("spec.volumes[data].emptyDir", "native"),
        ("spec.volumes[data].name", "native"),
    ];
    assert_eq!(shown(&review), expected);
}

#[test]
fn values_that_ask_for_nothing_do_not_count() {
    let spec = json!({
        "hostNetwork": false, "securityContext": {}, "affinity": {}, "volumes": [],
        "containers": [{"name": "web", "terminationMessagePath": "/dev/termination-log", "resources": {}}],
    });
    assert_eq!(shown(&review(spec, &Choices::default())), [("spec.containers[web].name", "native")]);
}

#[test]
fn refusals_and_warnings_have_the_texts_of_the_rows() {
    let spec = json!({
        "hostNetwork": true, "securityContext": {"fsGroup": 1},
        "containers": [{"name": "web", "startupProbe": {}, "resources": {"limits": {"cpu": "1"}}}],
    });
    // An empty probe asks for nothing.
    let diagnostics = review(spec.clone(), &Choices::default()).diagnostics();
    let texts = |diagnostics: &crate::plan::Diagnostics| {
        let warnings = diagnostics.warnings().iter().map(|one| format!("{}: {}", one.field, one.message));
        warnings.collect::<Vec<_>>()
    };
    assert_eq!(diagnostics.errors()[0].message, "remove it");
    assert_eq!(
        texts(&diagnostics),
        [
            "spec.containers[web].resources.limits: ignored: the group is limited, not the container",
            "spec.securityContext.fsGroup: ignored: volumes belong to root",
        ]
    );
    let refusing = review(spec, &choices(json!({"fsGroup": "refuse"}))).diagnostics();
    assert_eq!(texts(&refusing).len(), 1);
    let errors: Vec<_> = refusing.errors().iter().map(|one| (&*one.field, &*one.message)).collect();
    assert_eq!(
        errors,
        [("spec.hostNetwork", "remove it"), ("spec.securityContext.fsGroup", "use an init container")]
    );
}

#[test]
fn the_configuration_decides_by_name_or_by_type_and_name() {
    let row = TABLE.row("Container.startupProbe").unwrap();
    assert_eq!(Choices::default().of(row), Choice::Warn);
    assert_eq!(choices(json!({"startupProbe": "refuse"})).of(row), Choice::Refuse);
    let both = choices(json!({"startupProbe": "refuse", "Container.startupProbe": "warn"}));
    assert_eq!(both.of(row), Choice::Warn, "the longer name counts more");
}

#[test]
fn a_choice_for_a_field_that_has_none_is_an_error_that_names_the_nearest() {
    assert_eq!(choices(json!({"fsGroup": "warn", "Container.startupProbe": "warn"})).check(&TABLE), Ok(()));
    let near = choices(json!({"startupprobe": "warn"})).check(&TABLE).unwrap_err();
    assert!(near.ends_with("did you mean startupProbe?"), "{near}");
    let fixed = choices(json!({"hostNetwork": "warn"})).check(&TABLE).unwrap_err();
    assert_eq!(fixed, "fields: hostNetwork is not a choice: it is refused on Test");
}

#[test]
fn a_field_without_a_row_is_refused() {
    let review = review(json!({"containers": [], "hostPID": true}), &Choices::default());
    assert_eq!(review.fields[0].result, "Test does not know this field: remove it");
    assert!(review.diagnostics().is_refused());
}

#[test]
fn the_page_has_a_section_for_each_type_and_a_line_for_each_row() {
    let page = TABLE.to_markdown();
    assert!(page.starts_with("## PodSpec\n\n| field | policy | result |\n|---|---|---|\n"), "{page}");
    assert!(page.contains("| `hostNetwork` | refused | remove it (except `false`) |\n"), "{page}");
    assert!(page.contains(
        "| `startupProbe` | choice | `warn`: emulated, liveness probe starts later; `refuse`: use initialDelaySeconds |\n"
    ));
    assert!(page.contains("| `httpGet.httpHeaders` | refused | use exec |\n") && page.ends_with("|\n"));
    assert_eq!(page.lines().filter(|line| line.starts_with("| `")).count(), TABLE.rows.len());
}

/// A table in which everything is native: for samples of every field.
fn full_table() -> PolicyTable {
    let rows = api_fields().covered().map(|field| Row::native(Box::leak(field.into_boxed_str()), "X"));
    let nested = [
        "Probe.httpGet.httpHeaders",
        "Container.resources.limits",
        "Volume.emptyDir.medium",
        "Volume.nfs.server",
    ];
    let rows: Vec<_> = rows.chain(nested.map(|field| Row::native(field, "X"))).collect();
    PolicyTable { cloud: "Test", rows: Box::leak(rows.into_boxed_slice()) }
}

#[test]
fn each_field_has_a_sample_whose_review_has_its_row_and_the_one_without_has_not() {
    let table = full_table();
    assert_eq!(table.problems(), Vec::<String>::new());
    let samples = table.samples();
    assert_eq!(samples.len(), table.rows.len());
    for sample in &samples {
        let field = sample.row.field;
        assert_ne!(sample.base, sample.changed, "{field}");
        // Containers and volumes are there by their contents.
        if matches!(
            field,
            "PodSpec.containers" | "PodSpec.initContainers" | "PodSpec.volumes" | "Container.volumeMounts"
        ) {
            continue;
        }
        let has = |pod: &Pod| {
            let review = table.review(pod, &Choices::default());
            review.fields.iter().any(|one| one.path == sample.path && one.row == field)
        };
        assert!(
            has(&sample.changed),
            "{field}: {} in {:#?}",
            sample.path,
            table.review(&sample.changed, &Choices::default())
        );
        // Mandatory fields are there in both, with different values.
        if !matches!(field, "Container.image" | "Volume.nfs.server") {
            assert!(!has(&sample.base), "{field}");
        }
    }
}

#[test]
fn a_sample_never_has_a_harmless_value() {
    const TABLE: PolicyTable = PolicyTable {
        cloud: "Test",
        rows: &[
            Row::refused("PodSpec.enableServiceLinks", "x").unless(&[Literal::Bool(true)]),
            Row::refused("PodSpec.dnsPolicy", "x").unless(&[Literal::Text("Default")]).sample("\"None\""),
            Row::refused("Container.terminationMessagePath", "x").unless(&[Literal::Text("/sample")]),
        ],
    };
    let samples = TABLE.samples();
    assert_eq!(samples[0].changed.spec.as_ref().unwrap().enable_service_links, Some(false));
    assert_eq!(samples[1].changed.spec.as_ref().unwrap().dns_policy.as_deref(), Some("None"));
    let container = &samples[2].changed.spec.as_ref().unwrap().containers[0];
    assert_eq!(container.termination_message_path.as_deref(), Some("other"));
}

#[test]
fn a_sample_comes_with_what_it_refers_to() {
    let table = full_table();
    let samples = table.samples();
    let of = |field: &str| {
        let sample = samples.iter().find(|sample| sample.row.field == field).unwrap();
        resolved(sample.changed.clone())
    };
    assert!(of("Volume.configMap").files.contains_key("data"));
    assert!(of("Volume.persistentVolumeClaim").claims.contains_key("data"));
    assert_eq!(of("Container.env").containers["web"].env[0].name, "SAMPLE");
    assert_eq!(of("Container.args").containers["web"].args.as_ref().unwrap().words, ["sample"]);
    assert!(!of("PodSpec.imagePullSecrets").credentials.is_empty());
}
