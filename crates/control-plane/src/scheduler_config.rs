//! The file with the configuration of kube-scheduler.

use std::path::Path;

use serde_json::{Value, json};

use crate::certs;
use crate::error::{Error, Result};

/// Writes a KubeSchedulerConfiguration, given as YAML, to a file. With `--config`, kube-scheduler takes the kubeconfig from this file only.
pub(crate) fn write(file: &Path, config: &str, kubeconfig: &Path) -> Result<()> {
    let mut value: Value =
        serde_saphyr::from_str(config).map_err(|error| Error::SchedulerConfig(error.to_string()))?;
    if !value.is_object() {
        return Err(Error::SchedulerConfig("is not a KubeSchedulerConfiguration".to_owned()));
    }
    value["clientConnection"]["kubeconfig"] = json!(kubeconfig);
    // JSON is YAML.
    certs::write(file, &format!("{value:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_is_filled_in_and_the_rest_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scheduler.yaml");
        let config = "kind: KubeSchedulerConfiguration\nclientConnection: {qps: 500}\nprofiles: [{schedulerName: a}]\n";
        write(&file, config, Path::new("/k")).unwrap();
        let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(written["clientConnection"], json!({"qps": 500, "kubeconfig": "/k"}));
        assert_eq!(written["profiles"][0]["schedulerName"], "a");
    }

    #[test]
    fn text_that_is_no_configuration_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for config in ["", "[]", "{"] {
            let outcome = write(&folder.path().join("file"), config, Path::new("/k"));
            assert!(matches!(outcome, Err(Error::SchedulerConfig(_))), "{config}: {outcome:?}");
        }
    }
}
