//! Variables with the pod's address, which is known only after the pod was created.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodStatus;
use vk_provider::error::Kind;

use super::exec::run;
use crate::conformance::{
    context::CaseContext,
    pod_builder::{ADDRESS, APP, URL, url},
    result::{Outcome, Stop, ensure},
};

/// A variable that is the pod's address has it.
pub(crate) async fn a_variable_has_the_address_of_the_pod(context: &CaseContext) -> Outcome {
    address_is_in(context, ADDRESS, false, |ip| ip.to_string()).await
}

/// A value that contains the pod's address has it, or the pod is refused.
pub(crate) async fn an_address_inside_a_value_is_filled_in_or_refused(context: &CaseContext) -> Outcome {
    address_is_in(context, URL, true, |ip| url(&ip.to_string())).await
}

async fn address_is_in(
    context: &CaseContext,
    variable: &str,
    inside: bool,
    wanted: impl Fn(IpAddr) -> String,
) -> Outcome {
    let caller = context.open().await?;
    caller.exec()?;
    let pod = context.pod().with_address(inside).build();
    if let Err(error) = caller.try_create(&pod).await?
        && matches!(error.kind(), Kind::Unsupported | Kind::Invalid)
    {
        return Err(Stop::DoesNotApply(format!("the provider refuses such variables: {}", error.report())));
    }
    let (made, status) = caller.start(&pod).await?;
    let Some(ip) = address(&status) else {
        return Err(Stop::DoesNotApply("the provider reports no address".to_owned()));
    };
    let (_, output) = run(&caller, &made.container(APP), &["env"], "").await?;
    let value = output.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    ensure(
        value == Some(&wanted(ip)),
        || format!("the pod has the address {ip}, and `env` prints {variable}={value:?}"),
        "give Facts::pod_ips to bundle.resolver.container(..), use a field reference of the backend, or refuse deferred values",
    )
}

fn address(status: &PodStatus) -> Option<IpAddr> {
    status.pod_ip.as_ref()?.parse().ok()
}
