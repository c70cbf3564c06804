//! Golden pods, and what is refused.

#![expect(clippy::needless_pass_by_value, clippy::unnecessary_wraps, reason = "short calls in tests")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};
use vk_container_group::plan::{policy::sample, size::Resources};
use vk_provider::resolve::{CommandLine, Deferred, File, FileSet, Origin, PullCredentials, Variable};

use super::{size::SIZES, *};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden");
/// Set to write the expected requests.
const UPDATE: &str = "VK_UPDATE_GENERATED";

fn translator() -> Translator {
    Translator {
        v_switches: vec!["vsw-a".to_owned(), "vsw-b".to_owned()],
        is_random: false,
        security_group: "sg-1".to_owned(),
        resource_group: Some("rg-1".to_owned()),
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        choices: Choices::default(),
        replaces_files: false,
    }
}

fn pod(spec: Value) -> Pod {
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c11"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn annotated(annotations: Value) -> Pod {
    let mut pod = pod(json!({"containers": [{"name": "web", "image": "nginx"}]}));
    pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
    pod
}

fn planned(pod: Pod) -> Plan<EciRequest> {
    translator().plan(&sample::resolved(pod)).unwrap()
}

fn refused(pod: &ResolvedPod) -> Vec<(String, String)> {
    let rejection = translator().plan(pod).unwrap_err();
    rejection.errors.into_iter().map(|error| (error.field, error.message)).collect()
}

fn request(plan: &Plan<EciRequest>) -> BTreeMap<String, String> {
    plan.request.create.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn golden_pods_become_the_expected_requests() {
    let mut files: Vec<PathBuf> = fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let mut golden: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let pod: Pod = serde_json::from_value(golden["pod"].clone()).unwrap();
        let plan = planned(pod);
        let warnings: Vec<&str> = plan.warnings.iter().map(|warning| warning.field.as_str()).collect();
        let found = json!({
            "request": request(&plan),
            "update": plan.request.update.iter().collect::<BTreeMap<_, _>>(),
            "placements": plan.placements.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "size": plan.size.as_ref().map(ToString::to_string),
            "warnings": warnings,
        });
        if std::env::var_os(UPDATE).is_some() {
            golden["expected"] = found.clone();
            fs::write(&file, format!("{}\n", serde_json::to_string_pretty(&golden).unwrap())).unwrap();
        }
        assert_eq!(golden["expected"], found, "{}", file.display());
    }
}

#[test]
fn sizes_are_those_of_the_vendors_grid() {
    // vCPU, and the GiB that go with them, from the vendor's page.
    let grid: [(f64, &[f64]); 12] = [
        (0.25, &[0.5, 1.0]),
        (0.5, &[1.0, 2.0]),
        (1.0, &[2.0, 4.0, 8.0]),
        (2.0, &[1.0, 2.0, 4.0, 8.0, 16.0]),
        (4.0, &[2.0, 4.0, 8.0, 16.0, 32.0]),
        (8.0, &[4.0, 8.0, 16.0, 32.0, 64.0]),
        (12.0, &[12.0, 24.0, 48.0, 96.0]),
        (16.0, &[16.0, 32.0, 64.0, 128.0]),
        (24.0, &[24.0, 48.0, 96.0, 192.0]),
        (32.0, &[32.0, 64.0, 128.0, 256.0]),
        (52.0, &[96.0, 192.0, 384.0]),
        (64.0, &[128.0, 256.0, 512.0]),
    ];
    let size = |cpu: f64, gib: f64| -> Resources {
        let of = |text: String| text.parse().unwrap();
        Resources { cpu: of(format!("{cpu}")), memory: of(format!("{gib}Gi")) }
    };
    for (cpu, all) in grid {
        for (at, gib) in all.iter().enumerate() {
            let exact = size(cpu, *gib);
            assert_eq!(SIZES.round_up(exact), Ok(exact), "{exact}");
            let above = if at == 0 { 0.1 } else { all[at - 1] + 0.1 };
            assert_eq!(SIZES.round_up(size(cpu, above)), Ok(exact), "{cpu} {above}");
        }
    }
    assert_eq!(SIZES.round_up(size(0.0, 0.0)), Ok(size(2.0, 4.0)), "the default");
    assert_eq!(SIZES.round_up(size(0.3, 0.1)), Ok(size(0.5, 1.0)));
    assert!(SIZES.round_up(size(65.0, 1.0)).is_err() && SIZES.round_up(size(1.0, 513.0)).is_err());
}

#[test]
fn all_reasons_are_given_at_once_and_each_names_its_field() {
    let pod = pod(json!({
        "hostNetwork": true,
        "containers": [{"name": "web", "image": "nginx", "livenessProbe": {"grpc": {"port": 1}},
            "resources": {"requests": {"vendor.example/fpga": "1", "nvidia.com/gpu": "1"}}}],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    }));
    let fields: Vec<String> = refused(&sample::resolved(pod)).into_iter().map(|(field, _)| field).collect();
    for field in [
        "spec.hostNetwork",
        "spec.containers[web].livenessProbe.grpc",
        "spec.containers[*].resources[vendor.example/fpga]",
        "spec.containers[*].resources[nvidia.com/gpu]",
        "spec.volumes[host].hostPath",
    ] {
        assert!(fields.contains(&field.to_owned()), "{field} in {fields:?}");
    }
}

#[test]
fn too_many_containers_and_volumes_are_refused() {
    let containers: Vec<Value> =
        (0..21).map(|number| json!({"name": format!("c{number}"), "image": "x"})).collect();
    let volumes: Vec<Value> =
        (0..21).map(|number| json!({"name": format!("v{number}"), "emptyDir": {}})).collect();
    let found = refused(&sample::resolved(pod(json!({"containers": containers, "volumes": volumes}))));
    assert!(
        found.iter().any(|(field, message)| field == "spec.containers" && message.contains("21")),
        "{found:?}"
    );
    assert!(
        found.iter().any(|(field, message)| field == "spec.volumes" && message.contains("21")),
        "{found:?}"
    );
}

fn with_variable(variable: Variable) -> ResolvedPod {
    let mut resolved = sample::resolved(pod(json!({"containers": [{"name": "web", "image": "nginx"}]})));
    resolved.containers.get_mut("web").unwrap().env = vec![variable];
    resolved
}

#[test]
fn a_variable_that_is_too_long_is_refused_by_its_name_and_without_its_value() {
    let fits = Variable::new("TEXT", "ä".repeat(256), Origin::ConfigMap);
    assert!(translator().plan(&with_variable(fits)).is_ok());
    let long = Variable::new("TEXT", format!("hidden{}", "x".repeat(251)), Origin::Secret);
    let found = refused(&with_variable(long));
    assert_eq!(found[0].0, "spec.containers[web].env[TEXT]");
    assert!(found[0].1.contains("257") && !found[0].1.contains("hidden"), "{found:?}");
}

#[test]
fn secret_variables_are_hidden_and_in_no_dump() {
    let plan =
        translator().plan(&with_variable(Variable::new("PASSWORD", "hunter2", Origin::Secret))).unwrap();
    let all = request(&plan);
    assert_eq!(all["Container.1.EnvironmentVar.1.Value"], "hunter2");
    assert_eq!(all["Container.1.EnvironmentVarHide"], "true");
    assert!(!format!("{plan:?}").contains("hunter2"));
    let plan = translator().plan(&with_variable(Variable::new("COLOR", "red", Origin::ConfigMap))).unwrap();
    assert!(!request(&plan).contains_key("Container.1.EnvironmentVarHide"));
}

fn deferred(field: &str, whole: bool) -> Option<Deferred> {
    Some(Deferred { field: field.to_owned(), whole })
}

#[test]
fn an_address_becomes_a_field_reference_or_the_place_is_named() {
    let variable = |field: &str, whole: bool| {
        let mut variable = Variable::new("ADDRESS", "", Origin::Field);
        variable.deferred = deferred(field, whole);
        with_variable(variable)
    };
    let all = request(&translator().plan(&variable("status.podIP", true)).unwrap());
    assert_eq!(all["Container.1.EnvironmentVar.1.FieldRef.FieldPath"], "status.podIP");
    assert!(!all.contains_key("Container.1.EnvironmentVar.1.Value"));
    for (field, whole) in [("status.podIP", false), ("status.hostIP", true)] {
        let found = refused(&variable(field, whole));
        assert!(found[0].0 == "spec.containers[web].env[ADDRESS]" && found[0].1.contains(field), "{found:?}");
    }
    let mut argument =
        sample::resolved(pod(json!({"containers": [{"name": "web", "image": "nginx", "args": ["x"]}]})));
    let line = &mut argument.containers.get_mut("web").unwrap().args;
    line.as_mut().unwrap().deferred = deferred("status.podIP", false);
    assert_eq!(refused(&argument)[0].0, "spec.containers[web].args");
}

#[test]
fn commands_within_the_limits_are_passed_on_and_others_are_refused() {
    let run = |command: usize, args: usize| {
        let mut resolved = sample::resolved(pod(json!({"containers": [{"name": "web", "image": "nginx"}]})));
        let inputs = resolved.containers.get_mut("web").unwrap();
        let line =
            |count: usize| (count > 0).then(|| CommandLine::literal((0..count).map(|at| at.to_string())));
        (inputs.command, inputs.args) = (line(command), line(args));
        translator().plan(&resolved).map(|plan| {
            let all = request(&plan);
            let count = |prefix: &str| all.keys().filter(|key| key.starts_with(prefix)).count();
            (count("Container.1.Command."), count("Container.1.Arg."))
        })
    };
    assert_eq!(run(0, 0), Ok((0, 0)), "the image's entry point stays");
    assert_eq!(run(1, 2), Ok((1, 2)));
    assert_eq!(run(1, 12), Ok((13, 0)), "the same, in a longer command");
    assert!(run(0, 11).is_err() && run(21, 0).is_err() && run(10, 11).is_err());
}

#[test]
fn the_annotations_of_the_vendor_keep_their_meaning() {
    let plan = planned(annotated(json!({
        "k8s.aliyun.com/eci-vswitch": "vsw-x, vsw-y",
        "k8s.aliyun.com/eci-use-specs": "2-4Gi,ecs.c6.xlarge",
        "k8s.aliyun.com/eci-security-group": "sg-2,sg-3",
        "k8s.aliyun.com/eci-resource-group-id": "rg-2",
        "k8s.aliyun.com/eci-ram-role-name": "role",
        "k8s.aliyun.com/eci-spot-strategy": "SpotWithPriceLimit",
        "k8s.aliyun.com/eci-spot-price-limit": "0.5",
        "k8s.aliyun.com/eci-image-cache": "true",
        "k8s.aliyun.com/eci-gpu-driver-version": "tesla=535",
        "k8s.aliyun.com/eci-with-eip": "true",
        "k8s.aliyun.com/eci-eip-bandwidth": "5",
        "k8s.aliyun.com/other": "not of ECI",
    })));
    let all = request(&plan);
    for (name, value) in [
        ("SecurityGroupId", "sg-2,sg-3"),
        ("ResourceGroupId", "rg-2"),
        ("RamRoleName", "role"),
        ("SpotStrategy", "SpotWithPriceLimit"),
        ("SpotPriceLimit", "0.5"),
        ("AutoMatchImageCache", "true"),
        ("GpuDriverVersion", "tesla=535"),
        ("AutoCreateEip", "true"),
        ("EipBandwidth", "5"),
    ] {
        assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
    }
    let places: Vec<String> = plan.placements.iter().map(ToString::to_string).collect();
    assert_eq!(places, ["vsw-x, 2-4Gi", "vsw-y, 2-4Gi", "vsw-x, ecs.c6.xlarge", "vsw-y, ecs.c6.xlarge"]);
    assert_eq!(plan.size.unwrap().to_string(), "2-4Gi");
    assert!(plan.warnings.is_empty());
}

#[test]
fn a_misspelt_annotation_is_a_warning_with_the_nearest_name() {
    let plan = planned(annotated(json!({"k8s.aliyun.com/eci-use-spec": "2-4Gi"})));
    assert_eq!(plan.warnings[0].field, "metadata.annotations[k8s.aliyun.com/eci-use-spec]");
    assert!(plan.warnings[0].message.contains("k8s.aliyun.com/eci-use-specs"), "{:?}", plan.warnings);
}

#[test]
fn wrong_values_of_annotations_are_refused() {
    for (name, value) in [
        ("eci-use-specs", "large"),
        ("eci-use-specs", "2-x"),
        ("eci-schedule-strategy", "Random"),
        ("eci-spot-strategy", "Cheap"),
        ("eci-spot-strategy", "SpotWithPriceLimit"),
        ("eci-spot-price-limit", "-1"),
        ("eci-vswitch", ""),
        ("eci-vswitch", "1,2,3,4,5,6,7,8,9,10,11"),
        ("eci-security-group", "1,2,3,4,5,6"),
        ("eci-image-cache", "yes"),
        ("eci-eip-bandwidth", "fast"),
        ("eci-instance-family", "ecs.unheard"),
        ("eci-extra-ephemeral-storage", "0"),
    ] {
        let key = format!("k8s.aliyun.com/{name}");
        let found = refused(&sample::resolved(annotated(json!({ (key.clone()): value }))));
        assert_eq!(found[0].0, format!("metadata.annotations[{key}]"), "{value}: {found:?}");
    }
}

#[test]
fn the_subnets_are_mixed_by_the_pod_and_always_in_the_same_way() {
    let mut pod = annotated(json!({"k8s.aliyun.com/eci-schedule-strategy": "VSwitchRandom"}));
    let mut first = std::collections::BTreeSet::new();
    for number in 0..50 {
        pod.metadata.uid = Some(format!("uid-{number}"));
        let plan = planned(pod.clone());
        assert_eq!(plan.placements, planned(pod.clone()).placements);
        assert_eq!(plan.placements.len(), 2);
        first.insert(plan.placements[0].clone());
    }
    assert_eq!(first.len(), 2);
}

#[test]
fn instance_families_become_the_smallest_type_that_is_large_enough() {
    let mut pod = annotated(json!({"k8s.aliyun.com/eci-instance-family": "ecs.c6,ecs.g7,ecs.r6,ecs.hfc6"}));
    pod.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(json!({"requests": {"cpu": "3", "memory": "12Gi"}})).unwrap();
    let places = planned(pod).placements;
    let sizes: Vec<&str> = places.iter().step_by(2).filter_map(|place| place.size.as_deref()).collect();
    assert_eq!(sizes, ["ecs.c6.2xlarge", "ecs.g7.xlarge", "ecs.r6.xlarge", "ecs.hfc6.2xlarge"]);
}

#[test]
fn pods_of_daemon_sets_are_refused() {
    let mut pod = annotated(json!({}));
    pod.metadata.owner_references = serde_json::from_value(
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "1", "controller": true}]),
    )
    .unwrap();
    assert_eq!(refused(&sample::resolved(pod))[0].0, "metadata.ownerReferences");
}

#[test]
fn pull_secrets_are_passed_on_and_the_vendors_registry_needs_none() {
    let images = json!({"containers": [
        {"name": "web", "image": "registry.example/web:1"},
        {"name": "own", "image": "shop-registry.cn-hangzhou.cr.aliyuncs.com/own:1"},
    ]});
    let mut resolved = sample::resolved(pod(images));
    let login = PullCredentials::basic("registry.example", "user", "hunter2".to_owned());
    resolved.credentials.insert("registry.example/web:1".to_owned(), vec![login]);
    let plan = translator().plan(&resolved).unwrap();
    let all = request(&plan);
    for (name, value) in [
        ("ImageRegistryCredential.1.Server", "registry.example"),
        ("ImageRegistryCredential.1.UserName", "user"),
        ("ImageRegistryCredential.1.Password", "hunter2"),
        ("AcrRegistryInfo.1.InstanceName", "shop"),
        ("AcrRegistryInfo.1.RegionId", "cn-hangzhou"),
        ("AcrRegistryInfo.1.Domain.1", "shop-registry.cn-hangzhou.cr.aliyuncs.com"),
    ] {
        assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!format!("{plan:?}").contains("hunter2"));
}

fn with_file(file: File) -> ResolvedPod {
    let mut resolved = sample::resolved(pod(json!({
        "containers": [{"name": "web", "image": "nginx", "volumeMounts": [{"name": "files", "mountPath": "/files"}]}],
        "volumes": [{"name": "files", "configMap": {"name": "files"}}],
    })));
    let files = BTreeMap::from([("dir/file".to_owned(), file)]);
    resolved.files.insert("files".to_owned(), FileSet { files, expires: None });
    resolved
}

#[test]
fn files_over_the_limit_are_refused_with_volume_file_and_sizes() {
    let file = |bytes: usize| with_file(File::new(vec![b'x'; bytes], 0o644, Origin::ConfigMap));
    assert!(translator().plan(&file(32 << 10)).is_ok());
    let found = refused(&file((32 << 10) + 1));
    assert!(found[0].0 == "spec.volumes[files]" && found[0].1.contains("dir/file"), "{found:?}");
}

#[test]
fn a_file_of_another_user_can_be_read_by_that_user() {
    let token = File { owner: Some(1000), ..File::new("t", 0o600, Origin::Secret) };
    let all = request(&translator().plan(&with_file(token)).unwrap());
    assert_eq!(all["Volume.1.ConfigFileVolume.ConfigFileToPath.1.Mode"], "0666");
}

proptest! {
    #[test]
    fn files_arrive_byte_for_byte(content in proptest::collection::vec(any::<u8>(), 0..=100)) {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let resolved = with_file(File::new(content.clone(), 0o640, Origin::Secret));
        let all = request(&translator().plan(&resolved).unwrap());
        let item = "Volume.1.ConfigFileVolume.ConfigFileToPath.1";
        prop_assert_eq!(BASE64_STANDARD.decode(&all[&format!("{item}.Content")]).unwrap(), content);
        prop_assert_eq!(&all[&format!("{item}.Mode")], "0640");
        prop_assert_eq!(&all[&format!("{item}.Path")], "dir/file");
    }
}

#[test]
fn without_servers_of_the_cluster_names_are_resolved_by_the_vpc_and_a_warning_says_so() {
    let translator = Translator { cluster_dns: Vec::new(), ..translator() };
    let plan = translator.plan(&sample::resolved(annotated(json!({})))).unwrap();
    assert_eq!(request(&plan)["DnsPolicy"], "Default");
    assert_eq!(plan.warnings[0].field, "spec.dnsPolicy");
}
