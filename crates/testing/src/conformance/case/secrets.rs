//! Secrets and pull credentials.

use std::{sync::Arc, time::Duration};

use vk_provider::PodBundle;

use super::exec::run;
use crate::conformance::{
    context::CaseContext,
    pod_builder::{APP, LOGIN, PASSWORD, PULL_SECRET, reference},
    resolver::FixedResolver,
    result::{Outcome, Stop, ensure},
    subject::Feature,
};

/// A key of a Secret is a variable of the container.
pub(crate) async fn a_secret_becomes_a_variable(context: &CaseContext) -> Outcome {
    context.needs(Feature::Secrets)?;
    let caller = context.open().await?;
    caller.exec()?;
    let (made, _) = caller.start(&context.pod().with_secret().build()).await?;
    let (_, output) = run(&caller, &made.container(APP), &["env"], "").await?;
    let wanted = format!("{PASSWORD}={}", LOGIN.2);
    ensure(
        output.lines().any(|line| line == wanted),
        || format!("`env` does not print the variable {PASSWORD} with the Secret's value"),
        "take the environment from bundle.resolver.container(..) when the container starts, secrets included",
    )
}

/// Credentials are asked for images of the pod only.
pub(crate) async fn pull_credentials_are_for_the_images_of_the_pod(context: &CaseContext) -> Outcome {
    context.needs(Feature::Secrets)?;
    let caller = context.open().await?;
    let pod = context.pod().with_secret().build();
    let resolver = Arc::new(FixedResolver::new(&pod));
    let bundle = PodBundle { pod: Arc::clone(&pod), resolver: Arc::<FixedResolver>::clone(&resolver) };
    let made = caller.create_bundle(&bundle).await?;
    caller.running(&made).await?;
    let asked = resolver.requests().images;
    if asked.is_empty() {
        return Err(Stop::DoesNotApply("the provider asks for no pull credentials".to_owned()));
    }
    let images = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|container| &container.image);
    let images: Vec<&String> = images.collect();
    let foreign = asked.iter().find(|image| !images.contains(image));
    ensure(
        foreign.is_none(),
        || format!("the provider asked for the credentials of {foreign:?}"),
        "call bundle.resolver.pull_credentials(..) with the container's image",
    )
}

/// Secrets are in nothing that the provider shows.
pub(crate) async fn nothing_secret_is_shown(context: &CaseContext) -> Outcome {
    context.needs(Feature::Secrets)?;
    let caller = context.open().await?;
    let pod = context.pod().with_secret().build();
    let made = caller.create(&pod).await?;
    let status = caller.running(&made).await?;
    let listed = caller.listed(&made).await?;
    caller.delete(&pod, Duration::from_secs(30)).await?;
    let ended = caller.over(&reference(&pod)).await?;
    for (what, text) in [
        ("the status", format!("{status:?} {ended:?}")),
        ("the list", format!("{listed:?}")),
        ("a change", caller.all_changes()),
    ] {
        ensure(
            [LOGIN.2, PULL_SECRET.2].iter().all(|secret| !text.contains(secret)),
            || format!("{what} contains a secret"),
            "leave values with Origin::Secret and pull credentials out of everything that is shown",
        )?;
    }
    Ok(())
}
