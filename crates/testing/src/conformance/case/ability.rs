//! Optional abilities of a provider.

use vk_provider::Abilities;

use crate::conformance::{
    context::CaseContext,
    result::{Outcome, ensure},
    subject::Feature,
};

/// The provider has exactly the abilities that the subject declares, also in the next process.
pub(crate) async fn abilities_are_as_declared(context: &CaseContext) -> Outcome {
    for _ in 0..2 {
        let caller = context.open().await?;
        let has = Abilities::of(caller.provider());
        for (has, feature) in [
            (has.logs, Feature::Logs),
            (has.exec, Feature::Exec),
            (has.attach, Feature::Attach),
            (has.port_forward, Feature::PortForward),
            (has.stats, Feature::Stats),
            (has.fit, Feature::Fit),
        ] {
            ensure(
                !(has && context.lacks(feature)),
                || format!("the subject declares no {feature} but the provider has them"),
                "take the feature out of Subject::lacks, so that the provider is held to its rules",
            )?;
            ensure(
                has || context.lacks(feature),
                || format!("the provider has no {feature}, and the subject does not say so"),
                "return Some(self) from the accessor, or name the feature in Subject::lacks",
            )?;
        }
    }
    Ok(())
}
