//! Annotations and labels that the provider publishes on the pod.

use std::collections::BTreeSet;

use crate::pods::status::MetadataChanges;

/// What is to be written, and which keys are the provider's.
#[derive(Debug, Default)]
pub(super) struct PublishedMetadata {
    annotations: MetadataChanges,
    labels: MetadataChanges,
    /// Keys that the provider has published: their values are no change for it.
    keys: BTreeSet<String>,
}

// === impl PublishedMetadata ===

impl PublishedMetadata {
    pub(super) fn annotate(&mut self, annotations: MetadataChanges) {
        self.keys.extend(annotations.keys().cloned());
        self.annotations.extend(annotations);
    }

    pub(super) fn label(&mut self, labels: MetadataChanges) {
        self.keys.extend(labels.keys().cloned());
        self.labels.extend(labels);
    }

    /// Annotations to be written.
    pub(super) fn annotations(&self) -> &MetadataChanges {
        &self.annotations
    }

    /// Labels to be written.
    pub(super) fn labels(&self) -> &MetadataChanges {
        &self.labels
    }

    pub(super) fn keys(&self) -> &BTreeSet<String> {
        &self.keys
    }

    /// Whether nothing is to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }

    /// These were written. What came meanwhile is still to be written.
    pub(super) fn written(&mut self, annotations: &MetadataChanges, labels: &MetadataChanges) {
        for (pending, sent) in [(&mut self.annotations, annotations), (&mut self.labels, labels)] {
            pending.retain(|key, value| {
                let done = sent.get(key) == Some(value);
                if done && value.is_none() {
                    self.keys.remove(key);
                }
                !done
            });
        }
    }

    /// Gives up annotations that were refused. Returns whether there were any.
    pub(super) fn drop_annotations(&mut self, refused: &MetadataChanges) -> bool {
        drop_refused(&mut self.annotations, refused)
    }

    /// Gives up labels that were refused. Returns whether there were any.
    pub(super) fn drop_labels(&mut self, refused: &MetadataChanges) -> bool {
        drop_refused(&mut self.labels, refused)
    }
}

fn drop_refused(pending: &mut MetadataChanges, refused: &MetadataChanges) -> bool {
    let before = pending.len();
    pending.retain(|key, value| refused.get(key) != Some(value));
    pending.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: Option<&str>) -> MetadataChanges {
        [(key.to_owned(), value.map(str::to_owned))].into()
    }

    #[test]
    fn what_changes_during_a_write_is_written_again() {
        let mut metadata = PublishedMetadata::default();
        metadata.annotate(set("a", Some("1")));
        let sent = metadata.annotations().clone();
        metadata.annotate(set("a", Some("2")));
        metadata.annotate(set("b", Some("1")));
        metadata.written(&sent, &MetadataChanges::new());
        assert_eq!(metadata.annotations().len(), 2);
        let sent = metadata.annotations().clone();
        metadata.written(&sent, &MetadataChanges::new());
        assert!(metadata.is_empty());
    }

    #[test]
    fn a_key_is_the_providers_until_its_removal_is_written() {
        let mut metadata = PublishedMetadata::default();
        metadata.label(set("a", Some("1")));
        metadata.written(&MetadataChanges::new(), &set("a", Some("1")));
        assert!(metadata.keys().contains("a"));
        metadata.label(set("a", None));
        metadata.written(&MetadataChanges::new(), &set("a", None));
        assert!(metadata.keys().is_empty());
    }
}
