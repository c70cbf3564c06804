use serde_json::{Value, json};

use super::*;
use crate::spec::tests::{pod, settings};

fn spec_with(pod_context: &Value, context: &Value) -> Pod {
    pod(json!({
        "securityContext": pod_context,
        "containers": [{ "name": "c", "image": "x", "securityContext": context }],
    }))
}

fn made_on(
    features: &super::super::HostFeatures,
    pod: &Pod,
    image: crate::backend::Image,
) -> Result<ContainerSecurity, String> {
    let container = crate::containers::find_container(pod, "c").unwrap();
    let (settings, runtime) = (settings(), crate::backend::RuntimeInfo::default());
    let host_dns = crate::backend::Dns::default();
    let builder = super::super::SandboxBuilder {
        pod,
        attempt: 0,
        settings: &settings,
        features,
        runtime: &runtime,
        runtime_class: None,
        host_dns: &host_dns,
    };
    let sandbox = builder.build(&|_, _, _| ()).unwrap();
    let image = image::ResolvedImage { image_ref: "r".to_owned(), image };
    let inputs = vk_provider::resolve::ContainerInputs::default();
    let builder = ContainerBuilder {
        pod,
        container: &container,
        attempt: 0,
        hash: 0,
        settings: &settings,
        features,
        runtime: &runtime,
        sandbox: &sandbox,
        image: &image,
        inputs: &inputs,
        mounts: &[],
        hosts_file: None,
        termination_file: None,
        target: None,
    };
    of_container(&builder, Namespaces::default())
}

fn made(
    pod_context: &Value,
    context: &Value,
    image: crate::backend::Image,
) -> Result<ContainerSecurity, String> {
    made_on(&super::super::HostFeatures::default(), &spec_with(pod_context, context), image)
}

fn image(uid: Option<i64>, username: &str) -> crate::backend::Image {
    crate::backend::Image { uid, username: username.to_owned(), ..crate::backend::Image::default() }
}

#[test]
fn the_container_wins_over_the_pod() {
    let shared = json!({ "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4], "seLinuxOptions": { "type": "p" } });
    let security = made(&shared, &json!({}), image(Some(9), "")).unwrap();
    assert_eq!((security.user, security.group), (Some(1), Some(2)));
    assert_eq!(security.supplemental_groups, [3, 4]);
    assert_eq!(security.selinux.as_ref().unwrap().kind, "p");
    let own = json!({
        "runAsUser": 11, "runAsGroup": 12, "seLinuxOptions": { "type": "c" }, "privileged": true, "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false, "capabilities": { "add": ["NET_ADMIN"], "drop": ["ALL"] },
    });
    let security = made(&shared, &own, image(None, "")).unwrap();
    assert_eq!((security.user, security.group), (Some(11), Some(12)));
    assert_eq!(security.selinux.as_ref().unwrap().kind, "c");
    assert!(security.privileged && security.read_only_root && security.no_new_privileges);
    let capabilities = Capabilities { add: vec!["NET_ADMIN".to_owned()], drop: vec!["ALL".to_owned()] };
    assert_eq!(security.capabilities, capabilities);
    let plain = made(&json!({}), &json!({ "allowPrivilegeEscalation": true }), image(None, "")).unwrap();
    assert!(!plain.no_new_privileges);
}

#[test]
fn the_images_user_counts_where_the_spec_names_none() {
    for (image, user, username) in [
        (image(Some(7), "ignored"), Some(7), None),
        (image(None, "www"), None, Some("www")),
        (image(None, ""), Some(0), None),
    ] {
        let security = made(&json!({}), &json!({}), image).unwrap();
        assert_eq!((security.user, security.username.as_deref()), (user, username));
    }
    let security = made(&json!({ "runAsUser": 5 }), &json!({}), image(None, "www")).unwrap();
    assert_eq!((security.user, security.username), (Some(5), None));
}

#[test]
fn root_is_refused_where_it_must_not_be() {
    let (must, may) = (json!({ "runAsNonRoot": true }), json!({ "runAsNonRoot": false }));
    let place = "(pod: \"web_team(u-1)\", container: c)";
    for (shared, own, image, expected) in [
        (&must, json!({ "runAsUser": 1 }), image(None, ""), None),
        (&must, json!({ "runAsUser": 0 }), image(Some(1), ""), Some("container's runAsUser breaks non-root policy".to_owned())),
        (&must, json!({}), image(Some(1), ""), None),
        (&must, json!({}), image(Some(0), ""), Some("container has runAsNonRoot and image will run as root".to_owned())),
        (&must, json!({}), image(None, ""), Some("container has runAsNonRoot and image will run as root".to_owned())),
        (
            &must,
            json!({}),
            image(None, "www"),
            Some(
                "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root".to_owned(),
            ),
        ),
        (
            &must,
            json!({}),
            image(Some(1 << 31), ""),
            Some(
                "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be 1-(2147483647)): must be between \
                 0 and 2147483647, inclusive"
                    .to_owned(),
            ),
        ),
        (&must, may.clone(), image(Some(0), ""), None),
        (&may, must.clone(), image(Some(0), ""), Some("container has runAsNonRoot and image will run as root".to_owned())),
    ] {
        let expected = expected.map(|text| format!("{text} {place}"));
        assert_eq!(made(shared, &own, image.clone()).err(), expected, "{shared} {own} {image:?}");
    }
}

#[test]
fn proc_is_masked_unless_the_container_asks_for_all_of_it() {
    let features =
        super::super::HostFeatures { masked_paths: vec!["/sys/more".to_owned()], ..Default::default() };
    let masked = made_on(&features, &spec_with(&json!({}), &json!({})), image(None, "")).unwrap();
    assert_eq!((masked.masked_paths.len(), masked.read_only_paths.len()), (13, 5));
    assert!(masked.masked_paths.contains(&"/proc/kcore".to_owned()));
    assert_eq!(masked.masked_paths.last().unwrap(), "/sys/more");
    let default = spec_with(&json!({}), &json!({ "procMount": "Default" }));
    assert_eq!(made_on(&features, &default, image(None, "")).unwrap(), masked);
    let all =
        made_on(&features, &spec_with(&json!({}), &json!({ "procMount": "Unmasked" })), image(None, ""))
            .unwrap();
    assert!(all.masked_paths.is_empty() && all.read_only_paths.is_empty());
}

#[test]
fn seccomp_profiles_are_the_containers_then_the_pods_then_the_nodes() {
    let profile = |profile: Value| serde_json::from_value::<SeccompProfile>(profile).unwrap();
    let (plain, by_default) = (settings(), Settings { seccomp_default: true, ..settings() });
    assert_eq!(seccomp(None, &plain), Ok(Seccomp::Unconfined));
    assert_eq!(seccomp(None, &by_default), Ok(Seccomp::RuntimeDefault));
    assert_eq!(
        seccomp(Some(&profile(json!({ "type": "Unconfined" }))), &by_default),
        Ok(Seccomp::Unconfined)
    );
    let local = profile(json!({ "type": "Localhost", "localhostProfile": "audit/p.json" }));
    assert_eq!(
        seccomp(Some(&local), &plain),
        Ok(Seccomp::Localhost("/var/lib/vk/seccomp/audit/p.json".to_owned()))
    );
    let absolute = profile(json!({ "type": "Localhost", "localhostProfile": "/p.json" }));
    assert_eq!(
        seccomp(Some(&absolute), &plain),
        Ok(Seccomp::Localhost("/var/lib/vk/seccomp/p.json".to_owned()))
    );
    let nameless = profile(json!({ "type": "Localhost" }));
    let message = "localhostProfile must be set if seccompProfile type is Localhost.";
    assert_eq!(seccomp(Some(&nameless), &plain), Err(message.to_owned()));
    let outside = profile(json!({ "type": "Localhost", "localhostProfile": "../../etc/shadow" }));
    assert!(seccomp(Some(&outside), &plain).is_err());
    let shared = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    assert_eq!(made(&shared, &json!({}), image(None, "")).unwrap().seccomp, Seccomp::RuntimeDefault);
    let own = json!({ "seccompProfile": { "type": "Unconfined" } });
    assert_eq!(made(&shared, &own, image(None, "")).unwrap().seccomp, Seccomp::Unconfined);
}

#[test]
fn apparmor_comes_from_the_container_the_annotation_and_the_pod_in_this_order() {
    let field = |kind: &str| json!({ "appArmorProfile": { "type": kind } });
    let local = json!({ "appArmorProfile": { "type": "Localhost", "localhostProfile": "p" } });
    for (shared, note, own, expected) in [
        (json!({}), None, json!({}), Ok(None)),
        (field("RuntimeDefault"), None, json!({}), Ok(Some("runtime/default"))),
        (field("RuntimeDefault"), Some("localhost/old"), json!({}), Ok(Some("localhost/old"))),
        (field("RuntimeDefault"), Some("nonsense"), json!({}), Ok(Some("runtime/default"))),
        (json!({}), Some("unconfined"), local, Ok(Some("localhost/p"))),
        (json!({}), None, field("Localhost"), Err("missing localhost apparmor profile name")),
        (json!({}), None, field("Odd"), Err("unknown apparmor profile type: \"Odd\"")),
    ] {
        let mut pod = spec_with(&shared, &own);
        if let Some(note) = note {
            pod.metadata.annotations = Some([(format!("{APPARMOR}c"), note.to_owned())].into());
        }
        let made = made_on(&super::super::HostFeatures::default(), &pod, image(None, ""))
            .map(|security| security.apparmor);
        let expected = expected.map(|profile| profile.map(ToOwned::to_owned)).map_err(ToOwned::to_owned);
        assert_eq!(made, expected, "{shared} {note:?} {own}");
    }
}

#[test]
fn a_policy_for_groups_that_nobody_knows_is_refused() {
    let policy = |policy: &str| json!({ "supplementalGroupsPolicy": policy });
    let made = |policy: Value| {
        made(&policy, &json!({}), image(None, "")).map(|security| security.supplemental_groups_policy)
    };
    assert_eq!(made(policy("Merge")), Ok(SupplementalGroupsPolicy::Merge));
    assert_eq!(made(policy("Strict")), Ok(SupplementalGroupsPolicy::Strict));
    let odd = policy_of(&policy("Odd"));
    assert_eq!(odd, Err("unsupported supplementalGroupsPolicy: Odd".to_owned()));
}

fn policy_of(context: &Value) -> Result<SupplementalGroupsPolicy, String> {
    groups_policy(&serde_json::from_value(context.clone()).unwrap())
}
