//! Checks for `virtual-kubelet doctor`: whether pods can run on ECI.

mod permissions;

use std::time::Duration;

use vk_container_group::cloud::{Class, Error, Limits};
use vk_provider::{Context, Finding};
use vk_supervisor::Clock;

use crate::{
    api::{EciApi, Parameters},
    config::Settings,
    connection::Connection,
    factory::cluster_name,
};

/// A cloud that does not answer must not keep the user waiting.
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    first_byte: Duration::from_secs(10),
    total: Duration::from_secs(15),
    response_bytes: 8 << 20,
};
/// The image of the group that is checked and not created.
const IMAGE: &str = "registry.cn-hangzhou.aliyuncs.com/eci_open/busybox:1.30";

/// Checks everything in turn: what comes later depends on what comes first.
pub(crate) async fn examine(settings: &Settings, context: &Context) -> Vec<Finding> {
    let connection = Connection::new(settings, LIMITS, &Clock::system());
    let mut findings = vec![cluster(settings, context)];
    match connection.credentials.get().await {
        Ok(credentials) => {
            findings.push(Finding::ok("credentials", format!("those of {}", credentials.source)));
        }
        Err(error) => {
            findings.push(failure("credentials", &error));
            return findings;
        }
    }
    let api = &connection.api;
    match api.regions().await {
        Ok(regions) => findings.extend(region(settings, &regions)),
        Err(error) => {
            // Without an answer to this, nothing else has one.
            findings.push(failure("service", &error));
            return findings;
        }
    }
    findings.push(Finding::ok("clock", "the service accepts it"));
    findings.extend(permissions::examine(api, settings).await);
    for v_switch in &settings.v_switches {
        findings.push(dry_run(api, settings, v_switch).await);
    }
    findings.push(quota(api).await);
    findings
}

fn cluster(settings: &Settings, context: &Context) -> Finding {
    match cluster_name(settings, context) {
        Ok(name) => Finding::ok("cluster", format!("{name} in the account")),
        Err(error) => Finding::error(
            "cluster",
            error.message(),
            "set clusterName in the configuration of the provider, or name a cluster with --kubeconfig whose namespace kube-system you may get",
        ),
    }
}

fn region(settings: &Settings, regions: &crate::api::Regions) -> Vec<Finding> {
    let names: Vec<&str> = regions.regions.iter().filter_map(|region| region.region_id.get()).collect();
    if names.is_empty() {
        let text = "the answer names no regions: is the endpoint that of ECI?";
        return vec![Finding::error(
            "service",
            text,
            "check endpoint, and that no proxy answers in its place",
        )];
    }
    if names.contains(&settings.region.as_str()) {
        return vec![Finding::ok("region", settings.region.clone())];
    }
    let guess = vk_provider::config::nearest(&settings.region, names.iter().copied());
    let remedy = match guess {
        Some(guess) => format!("did you mean {guess}?"),
        None => format!("choose one of {}", names.join(", ")),
    };
    vec![Finding::error("region", format!("{} is not a region of ECI", settings.region), remedy)]
}

/// Checks that a group could be created in this subnet, with its security group, and that there is stock.
async fn dry_run(api: &EciApi, settings: &Settings, v_switch: &str) -> Finding {
    let mut parameters = Parameters::default();
    parameters.set("ContainerGroupName", "vk-doctor");
    parameters.set("SecurityGroupId", &settings.security_group);
    parameters.set("VSwitchId", v_switch);
    parameters.set_some("ResourceGroupId", settings.resource_group.as_ref());
    parameters.set("Container.1.Name", "doctor");
    parameters.set("Container.1.Image", IMAGE);
    parameters.set("Container.1.Cpu", 0.25);
    parameters.set("Container.1.Memory", 0.5);
    let what = format!("vSwitch {v_switch}");
    match api.dry_run(&parameters).await {
        Ok(()) => Finding::ok(what, "a group could be created, with this security group"),
        Err(error) if matches!(error.class(), Class::Capacity(_)) => Finding::warning(
            what,
            error.to_string(),
            "no stock now: add a vSwitch of another zone, or name sizes with the annotation k8s.aliyun.com/eci-use-specs",
        ),
        Err(error) => failure(&what, &error),
    }
}

async fn quota(api: &EciApi) -> Finding {
    let usage = match api.usage().await {
        Ok(usage) => usage,
        Err(error) => {
            return Finding::warning(
                "quota",
                error.to_string(),
                "allow eci:ListUsage: without it the node does not follow the quota",
            );
        }
    };
    let number = |name: &str| usage.attributes.get().and_then(|all| all.get(name)?.0);
    match (number("UsedCpu"), number("MaxCpu")) {
        (Some(used), Some(most)) if used >= most => Finding::error(
            "quota",
            format!("{used} of {most} CPUs are used"),
            "delete groups that are not needed, or ask for a higher quota",
        ),
        (Some(used), Some(most)) => Finding::ok("quota", format!("{used} of {most} CPUs are used")),
        _ => Finding::warning("quota", "the service names none", "the capacity of the configuration counts"),
    }
}

/// A failed call, with what to do.
fn failure(what: &str, error: &Error) -> Finding {
    let text = error.to_string();
    let remedy = match error.class() {
        Class::ClockSkew => {
            return Finding::error("clock", text, "set the clock of this host, and keep it right with NTP");
        }
        Class::Auth
            if error.code().is_some_and(|code| code.contains("Forbidden") || code.contains("Permission")) =>
        {
            "add the permission to the RAM policy of this user or role: see docs/guide/eci.md"
        }
        Class::Auth | Class::ExpiredToken => "check the credentials and their permissions",
        Class::Invalid { field: Some(field) } if field.contains("VSwitch") => {
            "write the id of a vSwitch of this region into vSwitches"
        }
        Class::Invalid { field: Some(field) } if field.contains("SecurityGroup") => {
            "write the id of a security group in the VPC of the vSwitches into securityGroup"
        }
        Class::Invalid { .. } | Class::NotFound => "correct the configuration",
        Class::Quota => "delete groups that are not needed, or ask for a higher quota",
        Class::Throttled { .. } => "try again later, and lower budget.requestsPerSecond",
        _ => "check endpoint, DNS, routes and proxies of this host",
    };
    Finding::error(what, text, remedy)
}
