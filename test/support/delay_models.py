from embodied_env.timing.delay_model import DelayDistribution, DelayModel


def constant(value_s):
    return DelayDistribution(kind="constant", values=(value_s,))


VARYING = DelayModel(
    sensors={
        "joints": DelayDistribution(kind="lognormal", values=(0.03, 0.5)),
        "tcp": DelayDistribution(kind="empirical", values=(0.011, 0.047, 0.093)),
        "target": constant(0.02),
    },
    inference=DelayDistribution(kind="empirical", values=(0.004, 0.009)),
    actuation=DelayDistribution(kind="lognormal", values=(0.04, 0.3)),
)
