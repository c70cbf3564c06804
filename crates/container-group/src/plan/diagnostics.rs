//! What a translation found wrong with a pod.

use crate::backend::{FieldError, Plan, Rejection, Warning};

/// Refusals and warnings, collected during a translation. A field has at most one of each: the newest replaces the one before, so a
/// specific message replaces that of the field policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    errors: Vec<FieldError>,
    warnings: Vec<Warning>,
}

impl Diagnostics {
    /// The pod cannot run because of this field. The message says what to write instead.
    pub fn refuse(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let error = FieldError { field: field.into(), message: message.into() };
        match self.errors.iter_mut().find(|earlier| earlier.field == error.field) {
            Some(earlier) => *earlier = error,
            None => self.errors.push(error),
        }
    }

    /// This field is not done as the pod asks for it.
    pub fn warn(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let warning = Warning { field: field.into(), message: message.into() };
        match self.warnings.iter_mut().find(|earlier| earlier.field == warning.field) {
            Some(earlier) => *earlier = warning,
            None => self.warnings.push(warning),
        }
    }

    /// Whether the pod is refused.
    pub fn is_refused(&self) -> bool {
        !self.errors.is_empty()
    }

    /// The refusals so far.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// The warnings so far.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The plan with the warnings, unless the pod is refused.
    pub fn finish<R>(self, mut plan: Plan<R>) -> Result<Plan<R>, Rejection> {
        if self.is_refused() {
            return Err(self.into());
        }
        plan.warnings.extend(self.warnings);
        Ok(plan)
    }
}

impl From<Diagnostics> for Rejection {
    fn from(diagnostics: Diagnostics) -> Self {
        Self { errors: diagnostics.errors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_refusals_has_a_plan_with_its_warnings() {
        let mut diagnostics = Diagnostics::default();
        diagnostics.warn("spec.a", "general");
        diagnostics.warn("spec.b", "other");
        diagnostics.warn("spec.a", "specific");
        let plan = diagnostics.finish(Plan::new(())).unwrap();
        let shown: Vec<_> =
            plan.warnings.iter().map(|warning| (&*warning.field, &*warning.message)).collect();
        assert_eq!(shown, [("spec.a", "specific"), ("spec.b", "other")]);
    }

    #[test]
    fn a_refused_pod_has_all_reasons_each_once() {
        let mut diagnostics = Diagnostics::default();
        diagnostics.refuse("spec.a", "general");
        diagnostics.refuse("spec.a", "specific");
        diagnostics.refuse("spec.b", "other");
        let rejection = diagnostics.finish(Plan::new(())).unwrap_err();
        assert_eq!(rejection.to_string(), "spec.a: specific; spec.b: other");
    }
}
