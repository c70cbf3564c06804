//! What the emulator refuses, each with the vendor's code.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use vk_eci_emulator::Limit;

use crate::caller::{call, create, exchange, group, signed, simulated, try_call};

const CREATE: &str = "CreateContainerGroup";

#[tokio::test]
async fn mistakes_in_a_create_are_refused_with_the_vendors_codes() {
    let emulator = simulated().await;
    let long = "x".repeat(257);
    let (key, value) = ("k".repeat(65), "v".repeat(129));
    let large = BASE64_STANDARD.encode(vec![b'x'; (32 << 10) + 1]);
    let switches = (0..11).map(|number| format!("vsw-{number}")).collect::<Vec<_>>().join(",");
    let token = "t".repeat(65);
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("InvalidParameter.ContainerGroupName", &[("ContainerGroupName", "x")]),
        ("InvalidParameter.ContainerGroupName", &[("ContainerGroupName", "-ab")]),
        ("InvalidParameter.ContainerGroupName", &[("ContainerGroupName", "aB")]),
        ("InvalidParameter.ContainerName", &[("Container.1.Name", "a_b")]),
        ("InvalidParameter.DuplicatedName", &[("Container.2.Name", "main"), ("Container.2.Image", "i")]),
        (
            "InvalidParameter.DuplicatedName",
            &[("InitContainer.1.Name", "main"), ("InitContainer.1.Image", "i")],
        ),
        ("InvalidParameter.RestartPolicy", &[("RestartPolicy", "Sometimes")]),
        ("InvalidParameter.DnsPolicy", &[("DnsPolicy", "ClusterFirst")]),
        ("MissingDnsConfig", &[("DnsPolicy", "None")]),
        ("MissingSpotPriceLimit", &[("SpotStrategy", "SpotWithPriceLimit")]),
        ("InvalidParameter.SpotStrategy", &[("SpotStrategy", "Cheap")]),
        ("InvalidParameter.LimitExceeded", &[("VSwitchId", &switches)]),
        ("InvalidVSwitchId.NotFound", &[("VSwitchId", "vsw-beijing")]),
        ("OperationDenied.VswZoneMisMatch", &[("ZoneId", "cn-hangzhou-b")]),
        ("InvalidSecurityGroupId.NotFound", &[("SecurityGroupId", "sg-none")]),
        ("InvalidParameter.ClientToken", &[("ClientToken", &token)]),
        ("InvalidParameter.ClientToken", &[("ClientToken", "tök")]),
        ("InvalidParameter.Tag", &[("Tag.1.Key", &key)]),
        ("InvalidParameter.Tag", &[("Tag.1.Key", "k"), ("Tag.1.Value", &value)]),
        ("InvalidParameter.Tag", &[("Tag.1.Key", "acs:k")]),
        ("InvalidParameter.Tag", &[("Tag.1.Key", "aliyun-k")]),
        ("InvalidParameter.Tag", &[("Tag.1.Key", "k"), ("Tag.1.Value", "see http://x")]),
        ("InvalidParameter.Tag", &[("Tag.1.Key", "k"), ("Tag.2.Key", "k")]),
        (
            "InvalidParameter.LengthExceeded",
            &[("Container.1.EnvironmentVar.1.Key", "K"), ("Container.1.EnvironmentVar.1.Value", &long)],
        ),
        ("InvalidParameter.EnvironmentVar.Key", &[("Container.1.EnvironmentVar.1.Key", "1K")]),
        ("InvalidParameter.EnvironmentVar.Key", &[("Container.1.EnvironmentVar.1.Key", "a.b")]),
        (
            "InvalidParameter.FieldPath",
            &[
                ("Container.1.EnvironmentVar.1.Key", "K"),
                ("Container.1.EnvironmentVar.1.FieldRef.FieldPath", "metadata.name"),
            ],
        ),
        (
            "InvalidParameter.Protocol",
            &[("Container.1.Port.1.Port", "80"), ("Container.1.Port.1.Protocol", "SCTP")],
        ),
        ("InvalidParameter.Port", &[("Container.1.Port.1.Port", "70000")]),
        ("InvalidParameter.ImagePullPolicy", &[("Container.1.ImagePullPolicy", "Often")]),
        ("InvalidParameter.CPU.Memory", &[("Container.1.Cpu", "65")]),
        ("InvalidParameter.CPU.Memory", &[("Container.1.Cpu", "-1")]),
        ("InvalidParameter.Cpu", &[("Container.1.Cpu", "one")]),
        ("InvalidResourceType.NotSupported", &[("InstanceType", "ecs.z9.nano")]),
        (
            "InvalidParameter.VolumeMount",
            &[("Container.1.VolumeMount.1.Name", "none"), ("Container.1.VolumeMount.1.MountPath", "/x")],
        ),
        ("InvalidParameter.VolumeType", &[("Volume.1.Name", "v"), ("Volume.1.Type", "CephVolume")]),
        (
            "Forbidden.HostPath",
            &[
                ("Volume.1.Name", "v"),
                ("Volume.1.Type", "HostPathVolume"),
                ("Volume.1.HostPathVolume.Path", "/"),
            ],
        ),
        (
            "InvalidParameter.Volume",
            &[("Volume.1.Name", "v"), ("Volume.1.Type", "EmptyDirVolume"), ("Volume.1.NFSVolume.Path", "/")],
        ),
        (
            "InvalidParameter.DuplicatedVolumeName",
            &[
                ("Volume.1.Name", "v"),
                ("Volume.1.Type", "EmptyDirVolume"),
                ("Volume.2.Name", "v"),
                ("Volume.2.Type", "EmptyDirVolume"),
            ],
        ),
        (
            "InvalidParameter.LengthExceeded",
            &[
                ("Volume.1.Name", "v"),
                ("Volume.1.Type", "ConfigFileVolume"),
                ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Path", "f"),
                ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Content", &large),
            ],
        ),
        (
            "InvalidParameter.Content",
            &[
                ("Volume.1.Name", "v"),
                ("Volume.1.Type", "ConfigFileVolume"),
                ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Path", "f"),
                ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Content", "YQ"),
            ],
        ),
        (
            "InvalidParameter.Path",
            &[
                ("Volume.1.Name", "v"),
                ("Volume.1.Type", "ConfigFileVolume"),
                ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Path", "../f"),
            ],
        ),
        (
            "InvalidParameter.Mode",
            &[
                ("Volume.1.Name", "v"),
                ("Volume.1.Type", "ConfigFileVolume"),
                ("Volume.1.ConfigFileVolume.DefaultMode", "0999"),
            ],
        ),
        ("InvalidParameter.LivenessProbe", &[("Container.1.LivenessProbe.PeriodSeconds", "1")]),
        (
            "InvalidParameter.ReadinessProbe",
            &[
                ("Container.1.ReadinessProbe.Exec.Command.1", "true"),
                ("Container.1.ReadinessProbe.TcpSocket.Port", "1"),
            ],
        ),
        (
            "InvalidParameter.SuccessThreshold",
            &[
                ("Container.1.LivenessProbe.TcpSocket.Port", "1"),
                ("Container.1.LivenessProbe.SuccessThreshold", "2"),
            ],
        ),
        ("InvalidParameter.HostAliase", &[("HostAliase.1.Ip", "somewhere")]),
        ("MissingImageRegistryCredential", &[("ImageRegistryCredential.1.Server", "r")]),
        ("MissingContainer", &[("Container.1.Image", "")]),
        ("InvalidParameter.Unsupported", &[("Container.1.StartupProbe.TcpSocket.Port", "1")]),
        ("InvalidParameter.AutoCreateEip", &[("AutoCreateEip", "perhaps")]),
    ];
    for (code, parameters) in cases {
        let answer = call(&emulator, CREATE, &group("vk-1", parameters)).await;
        assert_eq!(answer.code(), *code, "{parameters:?}: {answer:?}");
    }
    assert!(emulator.groups().is_empty(), "nothing was created");
}

#[tokio::test]
async fn counts_are_limited() {
    let emulator = simulated().await;
    for (name, most, field, value) in [
        ("Container", 20, "Name", "c"),
        ("Tag", 20, "Key", "k"),
        ("Volume", 20, "Name", "v"),
        ("Container.1.Arg", 10, "", "a"),
        ("Container.1.Command", 20, "", "a"),
        ("DnsConfig.NameServer", 3, "", "10.0.0.1"),
    ] {
        for (count, is_allowed) in [(most, true), (most + 1, false)] {
            let mut parameters = Vec::new();
            for number in 1..=count {
                let path = format!("{name}.{number}");
                let unique = if field.is_empty() { value.to_owned() } else { format!("{value}{number}") };
                parameters
                    .push((if field.is_empty() { path.clone() } else { format!("{path}.{field}") }, unique));
                if name == "Container" {
                    parameters.push((format!("{path}.Image"), "i".to_owned()));
                }
                if name == "Volume" {
                    parameters.push((format!("{path}.Type"), "EmptyDirVolume".to_owned()));
                }
            }
            let parameters: Vec<(&str, &str)> =
                parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let code = call(&emulator, CREATE, &group("vk-1", &parameters)).await.code();
            let expected = if is_allowed { "none" } else { "InvalidParameter.LimitExceeded" };
            assert_eq!(code, expected, "{name} {count}");
        }
    }
}

#[tokio::test]
async fn all_files_of_a_group_may_have_sixty_kib() {
    let emulator = simulated().await;
    for (size, expected) in [(30 << 10, "none"), ((30 << 10) + 1, "InvalidParameter.ConfigFileVolume")] {
        let content = BASE64_STANDARD.encode(vec![b'x'; size]);
        let files = "Volume.1.ConfigFileVolume.ConfigFileToPath";
        let names =
            [1, 2].map(|number| (format!("{files}.{number}.Path"), format!("{files}.{number}.Content")));
        let parameters = [
            ("Volume.1.Name", "v"),
            ("Volume.1.Type", "ConfigFileVolume"),
            (names[0].0.as_str(), "a"),
            (names[0].1.as_str(), content.as_str()),
            (names[1].0.as_str(), "b"),
            (names[1].1.as_str(), content.as_str()),
        ];
        assert_eq!(call(&emulator, CREATE, &group("vk-1", &parameters)).await.code(), expected);
    }
}

#[tokio::test]
async fn the_query_string_is_as_good_as_a_form() {
    let emulator = simulated().await;
    let content = BASE64_STANDARD.encode(vec![b'x'; 32 << 10]);
    let files = "Volume.1.ConfigFileVolume.ConfigFileToPath.1";
    let (path, contents) = (format!("{files}.Path"), format!("{files}.Content"));
    let more = [
        ("Volume.1.Name", "v"),
        ("Volume.1.Type", "ConfigFileVolume"),
        (path.as_str(), "a"),
        (contents.as_str(), content.as_str()),
        ("RegionId", "cn-hangzhou"),
    ];
    let query = signed(&emulator, CREATE, &group("vk-1", &more));
    let answer =
        exchange(&emulator, &format!("POST /?{query} HTTP/1.1\r\nHost: eci\r\nConnection: close\r\n\r\n"))
            .await;
    assert_eq!(answer.unwrap().status, 200);
    assert_eq!(emulator.groups().len(), 1);
}

#[tokio::test]
async fn other_actions_versions_and_regions_do_not_exist() {
    let emulator = simulated().await;
    let code = async |action, parameters: &[(&str, &str)]| {
        try_call(&emulator, action, parameters).await.unwrap().code()
    };
    assert_eq!(code("DescribeContainers", &[]).await, "InvalidAction.NotFound");
    assert_eq!(code("ListUsage", &[("RegionId", "cn-beijing")]).await, "InvalidRegionId.NotFound");
    assert_eq!(code("ListUsage", &[]).await, "MissingRegionId");
    let form =
        signed(&emulator, "ListUsage", &[("RegionId", "cn-hangzhou")]).replace("2018-08-08", "2017-01-01");
    let answer =
        exchange(&emulator, &format!("POST /?{form} HTTP/1.1\r\nHost: eci\r\nConnection: close\r\n\r\n"))
            .await;
    assert_eq!(answer.unwrap().code(), "InvalidVersion");
}

#[tokio::test]
async fn exec_needs_a_running_container_and_a_short_command() {
    let emulator = simulated().await;
    let id = create(
        &emulator,
        "vk-1",
        &[("Container.1.Command.1", "sh"), ("Container.1.Arg.1", "exit 0"), ("RestartPolicy", "Never")],
    )
    .await;
    let code = async |more: &[(&str, &str)]| {
        let mut all = vec![("ContainerGroupId", id.as_str()), ("ContainerName", "main")];
        all.extend(more);
        call(&emulator, "ExecContainerCommand", &all).await.code()
    };
    assert_eq!(code(&[("Command", "[\"true\"]")]).await, "IncorrectStatus");
    assert_eq!(code(&[("Command", "true")]).await, "InvalidParameter.Command");
    assert_eq!(code(&[("Command", "[]")]).await, "InvalidParameter.LimitExceeded");
    let many = serde_json::to_string(&vec!["x"; 21]).unwrap();
    assert_eq!(code(&[("Command", &many)]).await, "InvalidParameter.LimitExceeded");
    let long = serde_json::to_string(&["x".repeat(257)]).unwrap();
    assert_eq!(code(&[("Command", &long)]).await, "InvalidParameter.LengthExceeded");
    assert_eq!(
        code(&[("Command", "[\"true\"]"), ("Sync", "true"), ("TTY", "true")]).await,
        "InvalidParameter.Sync"
    );
}

#[tokio::test]
async fn calls_over_the_rate_are_throttled_and_counted() {
    let emulator = simulated().await;
    emulator.set_limit("ListUsage", Limit { burst: 2.0, per_second: 0.001 });
    for _ in 0..2 {
        assert_eq!(call(&emulator, "ListUsage", &[]).await.status, 200);
    }
    let throttled = call(&emulator, "ListUsage", &[]).await;
    assert_eq!(throttled.code(), "Throttling.User");
    assert!(throttled.head.contains("x-acs-retry-after: "), "{throttled:?}");
    let count = emulator.calls()["ListUsage"];
    assert_eq!((count.total, count.refused, count.throttled), (3, 1, 1));
    assert_eq!(call(&emulator, "DescribeRegions", &[]).await.status, 200, "each action has its own bucket");
}

#[tokio::test]
async fn without_permission_lists_are_empty_and_everything_else_is_forbidden() {
    let emulator = simulated().await;
    create(&emulator, "vk-1", &[]).await;
    emulator.deny("DescribeContainerGroups", true);
    emulator.deny(CREATE, true);
    let list = call(&emulator, "DescribeContainerGroups", &[]).await.json();
    assert_eq!((list["TotalCount"].as_u64(), list["Code"].as_str()), (Some(0), None));
    assert_eq!(call(&emulator, CREATE, &group("vk-2", &[])).await.code(), "Forbidden.RAM");
    emulator.deny("DescribeContainerGroups", false);
    assert_eq!(call(&emulator, "DescribeContainerGroups", &[]).await.json()["TotalCount"], 1);
}
